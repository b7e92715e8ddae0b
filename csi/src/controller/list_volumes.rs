//! `ListVolumes`: all volumes, with the nodes that serve each. A reader counts for the volume that it reads.

use holdfast_crds::{NODES, READERS_OF, Volume};
use holdfast_proto::csi::v1::list_volumes_response::{Entry, VolumeStatus};
use holdfast_proto::csi::v1::{self, ListVolumesRequest, ListVolumesResponse};
use kube::ResourceExt;
use tonic::{Request, Status};

use super::capacity::signed;
use super::memory;
use super::objects::ApiFailure;
use super::parameters::ANY_NODE;
use super::readers::{has_readers, is_made_for, not_for_readers};
use super::serving_node::serving_node;
use super::volumes::ClusterVolumes;
use crate::topology;

pub(super) async fn answer(
    volumes: &ClusterVolumes,
    request: Request<ListVolumesRequest>,
) -> Result<ListVolumesResponse, Status> {
    let ListVolumesRequest { max_entries, starting_token } = request.into_inner();
    let limit = u32::try_from(max_entries).map_err(|_negative| {
        Status::invalid_argument(format!("max_entries: {max_entries} is negative; write 0 for no limit"))
    })?;
    let page = match volumes.page(&not_for_readers(), limit, &starting_token).await {
        Ok(page) => page,
        Err(ApiFailure::Stale | ApiFailure::Invalid(_)) if !starting_token.is_empty() => {
            return Err(Status::aborted(
                "starting_token: is no longer valid; start the list again without one",
            ));
        }
        Err(failure) => return Err(failure.into()),
    };
    let next_token = page.metadata.continue_.unwrap_or_default();
    let is_shared = page.items.iter().any(has_readers);
    let readers = if is_shared { volumes.list(READERS_OF).await? } else { Vec::new() };
    let entries = page.items.iter().map(|volume| entry(volume, &readers)).collect();
    Ok(ListVolumesResponse { entries, next_token })
}

fn entry(volume: &Volume, readers: &[Volume]) -> Entry {
    let name = volume.name_any();
    let own = readers.iter().filter(|reader| is_made_for(*reader, &name));
    let serving = own.chain([volume]).filter_map(serving_node).map(str::to_owned);
    Entry {
        volume: Some(v1::Volume {
            capacity_bytes: signed(volume.spec.size_bytes().unwrap_or_default()),
            volume_id: name.clone(),
            accessible_topology: topologies(volume),
            ..v1::Volume::default()
        }),
        status: Some(VolumeStatus { published_node_ids: serving.collect() }),
    }
}

/// Returns the nodes on which the volume can be used, as in the response to its creation.
fn topologies(volume: &Volume) -> Vec<v1::Topology> {
    if let Some(node) = memory::node_of(volume) {
        return vec![topology::on(node)];
    }
    let is_for_any = volume.annotations().get(NODES).is_some_and(|nodes| nodes == ANY_NODE);
    if is_for_any { Vec::new() } else { vec![topology::of_volume(volume.spec.needs_ublk())] }
}

#[cfg(test)]
mod tests {
    use super::super::publish_volume::tests::volume;
    use super::super::serving_node::tests::cut_off;
    use super::*;

    #[test]
    fn a_volume_is_listed_with_the_node_that_serves_it() {
        let nodes =
            |serving| entry(&volume(Some("b"), serving), &[]).status.map(|found| found.published_node_ids);
        assert_eq!(nodes(None), Some(Vec::new()));
        assert_eq!(nodes(Some("a")), Some(vec!["a".to_owned()]));
        let again = entry(&cut_off(Some(2)), &[]).status.expect("a status");
        assert_eq!(again.published_node_ids, ["a"], "it was cut off, and attached again");
        let listed = entry(&volume(None, None), &[]).volume.expect("a volume");
        assert_eq!((listed.volume_id.as_str(), listed.capacity_bytes), ("data", 1 << 30));
    }

    #[test]
    fn a_volume_for_any_node_is_listed_without_topology() {
        let topologies =
            |volume: &Volume| entry(volume, &[]).volume.map(|found| found.accessible_topology.len());
        let mut listed = volume(None, None);
        assert_eq!(topologies(&listed), Some(1));
        listed.spec.transport = Some(holdfast_crds::RequiredTransport::Ublk);
        let for_ublk = entry(&listed, &[]).volume.expect("a volume").accessible_topology;
        assert_eq!(for_ublk, [topology::of_volume(true)]);
        listed.annotations_mut().insert(NODES.to_owned(), ANY_NODE.to_owned());
        assert_eq!(topologies(&listed), Some(0));
    }

    #[test]
    fn a_memory_volume_is_listed_on_its_node() {
        let mut made_for = volume(None, None);
        made_for.labels_mut().insert(holdfast_crds::MEMORY_NODE.to_owned(), "a".to_owned());
        let listed = entry(&made_for, &[]).volume.expect("a volume");
        assert_eq!(listed.accessible_topology, [topology::on("a")]);
    }

    #[test]
    fn a_volume_is_listed_with_the_nodes_of_its_readers() {
        let reader = |of: &str, serving| {
            let mut reader = volume(serving, serving);
            reader.labels_mut().insert(READERS_OF.to_owned(), of.to_owned());
            reader
        };
        let readers = [
            reader("data", Some("a")),
            reader("other", Some("b")),
            reader("data", None),
            reader("data", Some("c")),
        ];
        let listed = entry(&volume(None, None), &readers).status.expect("a status");
        assert_eq!(listed.published_node_ids, ["a", "c"]);
    }
}
