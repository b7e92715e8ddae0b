//! The conformance suite, over real HTTP.

use std::sync::Arc;

use holdfast_objects::conformance::{StoreUnderTest, run_all};

use crate::server::Server;

const LARGE_BYTES: usize = (12 << 20) + 345;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_in_process_server_conforms() {
    let server = Server::start().await;
    let store = Arc::new(server.store().await);
    let subject =
        StoreUnderTest { store: store.clone(), scope: "conformance".to_owned(), large_bytes: LARGE_BYTES };
    run_all(&subject).await.unwrap_or_else(|wrong| panic!("{wrong}"));
    let counts = store.counts();
    assert_eq!((counts.start_upload, counts.upload_part, counts.complete_upload), (1, 3, 1), "{counts:?}");
    assert_eq!(server.backend.keys(), Vec::<String>::new());
    assert_eq!(server.backend.open_uploads(), 0);
}
