use holdfast_ublk::{Features, KernelRelease, Unsupported};

use super::*;

const MINIMAL: &str = r#"
[node]
name = "a"

[stores.main]
endpoint = "http://127.0.0.1:9000"
bucket = "volumes"
path_style = true
[stores.main.credentials]
access_key_id = "id"
secret_access_key = "hush"
"#;

fn parse(text: &str, variables: &[(&str, &str)]) -> Result<Config, String> {
    let variable =
        |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, v)| (*v).to_owned());
    Config::parse(Path::new("/etc/holdfast/node.toml"), text.to_owned(), variable).map_err(|e| e.to_string())
}

#[test]
fn a_small_file_is_completed_by_defaults() {
    let config = parse(MINIMAL, &[]).unwrap();
    assert_eq!(config.node.node_name, "a");
    assert_eq!(config.node.transport, TransportChoice::Auto);
    assert_eq!(config.node.max_dirty_age, Duration::from_secs(30));
    assert_eq!(config.socket, Path::new(DEFAULT_SOCKET));
    assert!(config.metrics.is_none());
    let Control::Standalone(stores) = config.control else { panic!("standalone") };
    assert!(stores["main"].path_style);
}

#[test]
fn variables_override_the_file_and_others_are_left_alone() {
    let config = parse(
        MINIMAL,
        &[
            ("HOLDFAST_NODE_NAME", "b"),
            ("HOLDFAST_TRANSPORT", "user-copy"),
            ("HOLDFAST_RING_THREADS", "3"),
            ("HOLDFAST_MEMORY_VOLUMES", "8Gi"),
            ("HOLDFAST_OPERATOR_SERVICE_HOST", "10.0.0.1"),
        ],
    )
    .unwrap();
    assert_eq!(config.node.node_name, "b");
    assert_eq!(config.node.transport, TransportChoice::Only(Transport::UserCopy));
    assert_eq!(config.node.ring_threads, 3);
    assert_eq!(config.node.memory_volumes_bytes, 8 << 30);
    assert_eq!(parse(MINIMAL, &[]).unwrap().node.memory_volumes_bytes, 0, "none unless asked for");
}

/// A daemon with ublk must not fall back; one without it must.
#[test]
fn fuse_is_chosen_only_without_ublk() {
    // Features that the driver needs for recovery and for zero copy (`linux/ublk_cmd.h`).
    let bits = 1 << 3 | 1 << 4 | 1 << 6 | 1 | 1 << 11;
    let ublk = || Features::of(KernelRelease::new("7.3.4"), bits);
    let none = || Err(Unsupported::NoDriver);
    let (yes, no) = (|| Ok(()), || Err(Unsupported::NoDriver));
    assert_eq!(TransportChoice::Auto.among(ublk(), yes).unwrap(), Transport::ZeroCopy);
    assert_eq!(TransportChoice::Auto.among(none(), yes).unwrap(), Transport::Fuse);
    assert!(matches!(TransportChoice::Auto.among(none(), no), Err(Unsupported::NoDriver)));
    let forbidden = || Err(Unsupported::NoAccess(std::io::ErrorKind::PermissionDenied.into()));
    assert!(TransportChoice::Auto.among(forbidden(), yes).is_err(), "a driver that is there is no other way");
    let no_keeper = || Err(Unsupported::NoKeeper { socket: "/run/x".into(), found: "none serves" });
    assert!(
        matches!(TransportChoice::Auto.among(none(), no_keeper), Err(Unsupported::NoKeeper { .. })),
        "the keeper is what is missing, and not a driver"
    );
    assert_eq!(TransportChoice::Auto.among(ublk(), no_keeper).unwrap(), Transport::ZeroCopy);
    assert_eq!(TransportChoice::Only(Transport::Fuse).among(ublk(), yes).unwrap(), Transport::Fuse);
    assert!(TransportChoice::Only(Transport::UserCopy).among(none(), yes).is_err());
}

/// A keeper started by the daemon would end with its pod, and the devices with the keeper.
#[test]
fn a_daemon_of_kubernetes_starts_no_keeper() {
    let of = |kubernetes: bool, value| {
        let minimal = if kubernetes { "kubernetes = true\n[node]\nname = \"a\"\n" } else { MINIMAL };
        let config = parse(minimal, &[("HOLDFAST_TRANSPORT", value)]).unwrap();
        (config.node.transport, config.node.keeper)
    };
    let only = TransportChoice::Only(Transport::Fuse);
    assert_eq!(of(false, "auto"), (TransportChoice::Auto, KeeperStart::ByDaemon));
    assert_eq!(of(false, "fuse"), (only, KeeperStart::ByDaemon));
    assert_eq!(of(true, "auto"), (TransportChoice::Auto, KeeperStart::Outside));
    assert_eq!(of(true, "fuse"), (only, KeeperStart::Outside));
}

/// The file, the environment, and parts of the expected error.
type Case = (&'static str, &'static [(&'static str, &'static str)], &'static [&'static str]);

#[test]
fn an_error_names_the_place_and_the_fix() {
    let cases: [Case; 27] = [
        ("", &[], &["node.toml: stores", "[stores.NAME]", "cut off"]),
        ("[node]\nname = \"a\"\n", &[], &["node.toml: stores", "[stores.NAME]"]),
        ("[node]\nname = \"a", &[], &["node.toml:2", "cut off"]),
        ("[node]\nname = ", &[], &["node.toml:2"]),
        ("[nod", &[], &["node.toml:1"]),
        ("[node]\nnaem = \"a\"\n", &[], &["node.toml:2: node.naem", "unknown field", "`name`"]),
        ("[data]\n\nseal = 1\n", &[], &["node.toml:3: data.seal", "unknown field", "`seal_size`"]),
        ("[dta]\n", &[], &["node.toml:1: dta", "unknown field"]),
        ("[data]\nseal_size = \"64MB\"\n", &[], &["node.toml:2: data.seal_size", "`64MB`", "64Mi"]),
        ("[data]\nseal_size = \"1Ki\"\n", &[], &["node.toml:2: data.seal_size", "at least 1Mi"]),
        ("[data]\nmax_dirty_age = 30\n", &[], &["node.toml:2: data.max_dirty_age", "30s"]),
        ("[data]\nmax_dirty_age = \"2h\"\n", &[], &["node.toml:2: data.max_dirty_age", "between 1s and 1h"]),
        ("[data]\nmax_dirty = \"1Mi\"\n", &[], &["node.toml:2: data.max_dirty", "at least 64Mi"]),
        ("[data]\nmax_dirty = \"300Gi\"\n", &[], &["node.toml:2: data.max_dirty", "at most 256Gi"]),
        ("[data]\nupload_memory = \"32Mi\"\n", &[], &["node.toml:2: data.upload_memory", "at least 64Mi"]),
        ("[data]\ncache_size = \"64Mi\"\n", &[], &["node.toml:2: data.cache_size", "at least 128Mi"]),
        ("[data]\nring_threads = 0\n", &[], &["node.toml:2: data.ring_threads", "1 to 64"]),
        ("[data]\ntransport = \"zerocopy\"\n", &[], &["node.toml:2: data.transport", "`zero-copy`"]),
        ("[node]\nstate_dir = \"data\"\n", &[], &["node.toml:2: node.state_dir", "absolute"]),
        ("[metrics]\nlisten = \":9750\"\n", &[], &["node.toml:2: metrics.listen"]),
        ("[stores.main]\nregion = \"r\"\n", &[], &["node.toml:1: stores.main", "missing field `bucket`"]),
        ("[stores.main]\nbucket = \"NO\"\n", &[], &["node.toml:2: stores.main.bucket", "3 to 63"]),
        ("kubernetes = true\n", &[], &["node.toml: node.name", "HOLDFAST_NODE_NAME"]),
        (
            "kubernetes = true\nnode.name = \"a\"\nstores.x.bucket = \"bucket\"\n",
            &[],
            &["node.toml:3: stores", "ObjectStore"],
        ),
        ("", &[("HOLDFAST_TRANSPORT", "")], &["environment variable HOLDFAST_TRANSPORT", "unset it"]),
        ("", &[("HOLDFAST_KUBERNETES", "1")], &["environment variable HOLDFAST_KUBERNETES", "`true`"]),
        ("", &[("HOLDFAST_SEAL_SIZE", "1 GB")], &["environment variable HOLDFAST_SEAL_SIZE", "64Mi"]),
    ];
    for (text, variables, fragments) in cases {
        let error = parse(text, variables).expect_err(text);
        for fragment in fragments {
            assert!(error.contains(fragment), "{text:?} {variables:?}: {error:?} lacks {fragment:?}");
        }
    }
}

#[test]
fn a_secret_is_in_no_debug_text() {
    let config = parse(MINIMAL, &[]).unwrap();
    let text = format!("{config:?}");
    assert!(text.contains("\"id\"") && !text.contains("hush"), "{text}");
}

#[test]
fn the_table_for_users_has_every_setting_that_is_read() {
    let page = crate::documented::page("docs/configuration.md");
    let rows = page.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let setting = cells.next()?.trim_end_matches('`').to_owned();
        Some((cells.nth(1)?.trim_matches('`').to_owned(), setting))
    });
    let read = source::OVERRIDES.map(|(variable, setting, _)| (variable.to_owned(), setting.to_owned()));
    assert_eq!(rows.collect::<Vec<_>>(), read);
}
