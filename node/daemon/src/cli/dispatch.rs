//! Sends commands to the daemon over its socket.

use holdfast_proto::node::v1::{
    self as wire, AttachRequest, CapabilitiesRequest, ConfigureRequest, DetachRequest, Durability,
    GrowRequest, Limits, ListRequest, MemoryVolume, StatsRequest,
};

use super::client::{connect, finish};
use super::{
    Attach, Class, Command, Compression, Configure, MaxIops, MaxThroughput, create, gc, output, scrub,
    snapshot,
};
use crate::failure::Failure;
use crate::node::FailureKind;

/// Sends one command to the daemon; the response goes to `out`, as text for a user or as JSON.
///
/// # Errors
/// The daemon's rejection, or the reason it was not reached.
pub(super) async fn ask(command: Command, out: &mut String) -> Result<(), Failure> {
    match command {
        Command::Run { .. }
        | Command::Preflight(_)
        | Command::Fenced(_)
        | Command::FlushDevice { .. }
        | Command::LoopDevice { .. }
        | Command::Keeper { .. } => Err(Failure {
            kind: FailureKind::Local,
            message: "this command is not a request to the daemon".to_owned(),
        }),
        Command::Create(create) => create::run(create, out).await,
        Command::Attach(request) => attach(request, out).await,
        Command::Configure(request) => configure(request, out).await,
        Command::Grow { volume, size, memory_limit, memory_spill, target } => {
            let mut client = connect(&target).await?;
            let request = GrowRequest {
                volume_id: volume,
                size_bytes: size.0,
                memory_limit_bytes: memory_limit.map(|limit| limit.0),
                memory_spill_bytes: memory_spill.map(|spill| spill.0),
            };
            finish(client.grow(request).await, &target, out)
        }
        Command::Detach { volume, target } => {
            let mut client = connect(&target).await?;
            finish(client.detach(DetachRequest { volume_id: volume }).await, &target, out)
        }
        Command::List { target } => {
            let mut client = connect(&target).await?;
            finish(client.list(ListRequest {}).await, &target, out)
        }
        Command::Stats { volume, target } => {
            let mut client = connect(&target).await?;
            finish(client.stats(StatsRequest { volume_id: volume }).await, &target, out)
        }
        Command::Scrub(scrub) => scrub::run(scrub, out).await,
        Command::Gc(gc) => gc::run(gc, out).await,
        Command::Snapshot(command) => snapshot::run(command, out).await,
        Command::Capabilities { target } => {
            let mut client = connect(&target).await?;
            finish(client.capabilities(CapabilitiesRequest {}).await, &target, out)
        }
    }
}

/// Attaches a volume, and names the replaced writer in the output.
async fn attach(attach: Attach, out: &mut String) -> Result<(), Failure> {
    let Attach {
        volume,
        store,
        memory,
        memory_limit,
        memory_spill,
        compression,
        size,
        take_over,
        max_dirty_age,
        durability,
        max_iops,
        max_throughput,
        target,
    } = attach;
    let memory = memory.map(|size| MemoryVolume {
        size_bytes: size.0,
        limit_bytes: memory_limit.map(|limit| limit.0),
        spill_bytes: memory_spill.map(|limit| limit.0),
        compression: compression.map_or(wire::Compression::Unspecified, codec).into(),
    });
    let request = AttachRequest {
        volume_id: volume,
        store: store.unwrap_or_default(),
        size_bytes: size.map(|size| size.0),
        replaces_epoch: take_over,
        max_dirty_age: max_dirty_age.and_then(|age| age.0.try_into().ok()),
        durability: durability.map_or(Durability::Unspecified, wire_class).into(),
        memory,
        // A new attach has no limits to remove.
        limits: limits(max_iops.and_then(MaxIops::limit), max_throughput.and_then(MaxThroughput::limit)),
    };
    let mut client = connect(&target).await?;
    let answer = client.attach(request).await;
    if let Ok(answer) = &answer
        && let Some(displaced) = &answer.get_ref().displaced
    {
        super::note(&output::displaced(displaced));
    }
    finish(answer, &target, out)
}

/// Changes the settings of an attached volume.
async fn configure(configure: Configure, out: &mut String) -> Result<(), Failure> {
    let Configure { volume, max_dirty_age, durability, max_iops, max_throughput, target } = configure;
    let mut client = connect(&target).await?;
    let request = ConfigureRequest {
        volume_id: volume,
        max_dirty_age: max_dirty_age.and_then(|age| age.0.try_into().ok()),
        durability: durability.map_or(Durability::Unspecified, wire_class).into(),
        limits: limits(max_iops.map(|iops| iops.0), max_throughput.map(|bytes| bytes.0)),
    };
    finish(client.configure(request).await, &target, out)
}

fn limits(iops: Option<u64>, bytes_per_second: Option<u64>) -> Option<Limits> {
    (iops.is_some() || bytes_per_second.is_some()).then_some(Limits { iops, bytes_per_second })
}

fn codec(compression: Compression) -> wire::Compression {
    match compression {
        Compression::Lz4 => wire::Compression::Lz4,
        Compression::Zstd => wire::Compression::Zstd,
    }
}

fn wire_class(class: Class) -> Durability {
    match class {
        Class::Local => Durability::Local,
        Class::Object => Durability::Object,
    }
}
