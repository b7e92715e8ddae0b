//! The Kubernetes API itself.

use anyhow::{Result, ensure};
use holdfast_lab::vm::HOST;
use holdfast_lab::world::World;

pub(super) fn run(world: &World) -> Result<()> {
    let kubernetes = world.control_plane()?;
    let version = world.kubectl(["version"])?;
    ensure!(version.contains(holdfast_lab::pins::KUBERNETES), "not the pinned version: {version}");

    world.kubectl(["create", "namespace", "roles"])?;
    world.kubectl(["--namespace", "roles", "create", "serviceaccount", "visitor"])?;
    let config = kubernetes.service_account_kubeconfig("roles", "visitor", "127.0.0.1")?;
    let path = world.dir().join("visitor.kubeconfig");
    std::fs::write(&path, config)?;
    let path = path.display().to_string();
    let refused = world.kubectl(["--kubeconfig", &path, "get", "secrets"]);
    let refused = refused.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(refused.contains("system:serviceaccount:roles:visitor"), "not refused by role: {refused}");

    let vm = world.vm("a")?;
    let config = kubernetes.service_account_kubeconfig("roles", "visitor", HOST)?;
    let server = config
        .split('"')
        .find_map(|word| word.strip_prefix("https://"))
        .unwrap_or_default()
        .replace(':', "/");
    vm.exec(&format!("exec 3<>/dev/tcp/{server}"))?;
    Ok(())
}
