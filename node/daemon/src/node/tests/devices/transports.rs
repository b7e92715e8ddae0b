//! The transport that a daemon may use for its devices.

use super::*;

/// Regression: it was served over the node's transport, even a slow one.
#[test]
fn a_volume_for_ublk_is_attached_by_nothing_else() {
    let host = &Host::new(&["x"]);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let transport = TransportChoice::Only(Transport::Fuse);
        let config = NodeConfig { transport, ..host.dirs.config() };
        let node = Node::start_with(config, host.kernel.clone(), WITHIN).await.unwrap();
        let refused = node.attach(AttachRequest { ublk_only: true, ..host.request("x") }).await.unwrap_err();
        assert!(matches!(&refused, NodeError::UblkNeeded(volume) if *volume == id("x")), "{refused}");
        assert!(node.list().is_empty() && host.kernel.devices().len() == 2, "nothing is attached");
        node.shutdown().await;
    });
    host.daemon(|node| async move {
        node.attach(AttachRequest { ublk_only: true, ..host.request("x") }).await.unwrap();
    });
}

/// Regression: `transport` of a StorageNode was the kernel's best one, ignoring the configuration.
#[test]
fn the_capabilities_follow_the_setting() {
    let host = &Host::new(&["x"]);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for transport in [Transport::ZeroCopy, Transport::UserCopy, Transport::Fuse] {
            let config = NodeConfig { transport: TransportChoice::Only(transport), ..host.dirs.config() };
            let node = Node::start_with(config, host.kernel.clone(), WITHIN).await.unwrap();
            let Capabilities { transport: chosen, transports, .. } = node.capabilities();
            assert_eq!(chosen, Ok(transport));
            for (other, usable) in transports.into_iter().filter(|(other, _)| *other != transport) {
                let refusal = usable.unwrap_err();
                assert!(refusal.ends_with(&format!("set it to \"auto\" or \"{other}\"")), "{refusal}");
            }
            node.shutdown().await;
        }
    });
}
