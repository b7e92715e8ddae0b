//! Group snapshots. The scenario plays the operator: it creates the VolumeSnapshots, and reports when the
//! group is taken.

use anyhow::{Context, Result, ensure};
use holdfast_lab::csi::{Csi, GroupSnapshot, LIMIT, RequestedVolume, SHORT, expect_granted, expect_refused};
use holdfast_lab::operator::Operator;
use holdfast_lab::report;
use holdfast_lab::wait::until;
use holdfast_lab::world::World;

use super::super::provisioning::apply;
use super::{GIB, in_background};

const GROUP: &str = "groupsnapshot-1";
const VOLUMES: [&str; 2] = ["pvc-1", "pvc-log"];
const MEMBERS: [&str; 2] = ["groupsnapshot-1-2-0", "groupsnapshot-1-2-1"];
/// From a failed attempt, not deleted yet.
const FAILED: &str = "groupsnapshot-1-1-0";

pub(super) fn run(world: &World, csi: &Csi, operator: &Operator) -> Result<()> {
    expect_granted("create", csi.create(&RequestedVolume::new("pvc-log", GIB, "store"), LIMIT)?)?;
    operator.kill();
    refuse(world, csi)?;
    let first = take_group(world, csi)?;
    check_single_members(csi)?;

    report::step("get the group, and delete it with its snapshots");
    let found = expect_granted("get", csi.get_group_snapshot(GROUP, &MEMBERS)?)?;
    ensure!(found == first, "{found:?} is not {first:?}");
    let others = [MEMBERS[0], "other"];
    let words =
        "snapshot_ids: are not those of VolumeGroupSnapshot groupsnapshot-1; name groupsnapshot-1-2-0";
    expect_refused("get others", csi.get_group_snapshot(GROUP, &others)?, "InvalidArgument", words)?;
    expect_refused("delete others", csi.delete_group_snapshot(GROUP, &others)?, "InvalidArgument", words)?;
    expect_refused("get none", csi.get_group_snapshot("none", &MEMBERS)?, "NotFound", "is named `none`")?;
    for group in [GROUP, GROUP, "none", "No Name"] {
        expect_granted("delete", csi.delete_group_snapshot(group, &MEMBERS)?)?;
    }
    let left = world.kubectl(["get", "volumesnapshots.storage.holdfast.dev", "--output=name"])?;
    let left = left.trim();
    ensure!(left.ends_with(FAILED) && left.lines().count() == 1, "left after the deletion: {left}");
    expect_granted("delete what no group owns", csi.delete_snapshot(FAILED)?)?;
    operator.restart()?;
    expect_granted("delete", csi.delete("pvc-log", LIMIT)?)
}

fn refuse(world: &World, csi: &Csi) -> Result<()> {
    report::step("reject impossible groups");
    let ask = |volumes: &[&str]| csi.group_snapshot("groupsnapshot-0", volumes, &[], LIMIT);
    let many: Vec<String> = (0..33).map(|number| format!("pvc-{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (volumes, code, words) in [
        (&[][..], "InvalidArgument", "source_volume_ids: is empty"),
        (&["pvc-1", "pvc-1"], "InvalidArgument", "source_volume_ids: names `pvc-1` twice"),
        (&many, "InvalidArgument", "source_volume_ids: names 33 volumes"),
        (&["pvc-1", "pvc-none"], "NotFound", "source_volume_ids: no Volume is named `pvc-none`"),
    ] {
        expect_refused(words, ask(volumes)?, code, words)?;
    }
    let unknown = csi.group_snapshot("groupsnapshot-0", &VOLUMES, &[("retention", "7d")], LIMIT)?;
    expect_refused("a parameter", unknown, "InvalidArgument", "parameters.retention: is not known")?;
    let left = world.kubectl(["get", "volumegroupsnapshots.storage.holdfast.dev", "--output=name"])?;
    ensure!(left.is_empty(), "a refused group is there: {left}");
    Ok(())
}

fn take_group(world: &World, csi: &Csi) -> Result<GroupSnapshot> {
    report::step("take a group: wait for the operator, and list no snapshots of an unfinished group");
    let parameters = [
        ("csi.storage.k8s.io/volumegroupsnapshot/name", "nightly"),
        ("csi.storage.k8s.io/volumegroupsnapshot/namespace", "shop"),
        ("csi.storage.k8s.io/volumegroupsnapshotcontent/name", "content"),
    ];
    let pending = csi.group_snapshot(GROUP, &VOLUMES, &parameters, SHORT)?;
    expect_refused(
        "without an operator",
        pending,
        "Aborted",
        "VolumeGroupSnapshot groupsnapshot-1 is not taken yet",
    )?;
    let path = "--output=jsonpath={.spec.volumes} {.spec.deletionPolicy} \
                {.metadata.annotations.holdfast\\.dev/csi-volumegroupsnapshot}";
    let written =
        world.kubectl(["get", &format!("volumegroupsnapshot.storage.holdfast.dev/{GROUP}"), path])?;
    ensure!(written == "[\"pvc-1\",\"pvc-log\"] Delete shop/nightly", "the object says {written:?}");
    let other = csi.group_snapshot(GROUP, &["pvc-1"], &parameters, LIMIT)?;
    expect_refused("other volumes", other, "AlreadyExists", "exists with the Volumes pvc-1, pvc-log")?;
    let hidden = csi.get_group_snapshot(GROUP, &[])?;
    expect_refused("get", hidden, "NotFound", "VolumeGroupSnapshot groupsnapshot-1 is not taken yet")?;

    let waiting = in_background(csi, move |csi| csi.group_snapshot(GROUP, &VOLUMES, &parameters, LIMIT));
    create_member(world, FAILED, VOLUMES[0])?;
    for (name, volume) in MEMBERS.iter().zip(VOLUMES) {
        create_member(world, name, volume)?;
    }
    let listed = expect_granted("list", csi.all_snapshots()?)?;
    ensure!(listed.is_empty(), "snapshots of an unfinished group are told: {listed:?}");
    let hidden = csi.get_snapshot(MEMBERS[0])?;
    expect_refused("get a snapshot", hidden, "NotFound", "is named `groupsnapshot-1-2-0`")?;
    let members = format!(
        "[{{\"volume\": \"{}\", \"snapshot\": \"{}\"}}, {{\"volume\": \"{}\", \"snapshot\": \"{}\"}}]",
        VOLUMES[0], MEMBERS[0], VOLUMES[1], MEMBERS[1]
    );
    let fields = format!("\"snapshots\": {members}, \"takenTime\": \"2026-01-01T00:00:00Z\"");
    report_taken(world, "volumegroupsnapshot", GROUP, &fields)?;
    let first = expect_granted("take", waiting.join().ok().context("the request ends")??)?;
    let repeated =
        expect_granted("take again", csi.group_snapshot(GROUP, &[VOLUMES[1], VOLUMES[0]], &[], SHORT)?)?;
    ensure!(
        first == repeated && first.ready_to_use && first.creation_time.is_some(),
        "{first:?}, {repeated:?}"
    );
    let listed: Vec<(&str, &str)> =
        first.snapshots.iter().map(|one| (one.snapshot_id.as_str(), one.source_volume_id.as_str())).collect();
    ensure!(listed == [(MEMBERS[0], VOLUMES[0]), (MEMBERS[1], VOLUMES[1])], "{first:?}");
    ensure!(
        first.snapshots.iter().all(|one| one.group_snapshot_id == GROUP && one.ready_to_use),
        "{first:?}"
    );
    Ok(first)
}

/// The individual snapshots of a group.
fn check_single_members(csi: &Csi) -> Result<()> {
    report::step("list the snapshots of the group individually, and refuse to delete one");
    until("the snapshots to be told", LIMIT, || {
        Ok((expect_granted("list", csi.all_snapshots()?)?.len() == MEMBERS.len()).then_some(()))
    })?;
    for (name, volume) in MEMBERS.iter().zip(VOLUMES) {
        ensure!(expect_granted("list", csi.snapshots(volume)?)? == [*name], "the snapshots of {volume}");
        let listed = expect_granted("get a snapshot", csi.get_snapshot(name)?)?;
        ensure!(listed.group_snapshot_id == GROUP && listed.source_volume_id == volume, "{listed:?}");
        let words = format!("VolumeSnapshot {name} is one of VolumeGroupSnapshot {GROUP}; delete the group");
        expect_refused("delete one", csi.delete_snapshot(name)?, "InvalidArgument", &words)?;
    }
    let alone = csi.snapshot(MEMBERS[0], VOLUMES[0], SHORT)?;
    expect_refused(
        "take one of its name",
        alone,
        "AlreadyExists",
        "VolumeGroupSnapshot `groupsnapshot-1` as its group",
    )
}

/// Creates a VolumeSnapshot of the group in the state after operator and node have taken it.
fn create_member(world: &World, name: &str, volume: &str) -> Result<()> {
    apply(
        world,
        &format!(
            "apiVersion: storage.holdfast.dev/v1alpha1\nkind: VolumeSnapshot\nmetadata: {{name: {name}}}\n\
             spec: {{volume: {volume}, group: {GROUP}, deletionPolicy: Delete}}\n"
        ),
    )?;
    let fields = format!("\"sizeBytes\": {GIB}, \"takenTime\": \"2026-01-01T00:00:00Z\"");
    report_taken(world, "volumesnapshot", name, &fields)
}

/// Writes the status of a taken snapshot or group.
fn report_taken(world: &World, kind: &str, name: &str, fields: &str) -> Result<()> {
    let condition = "{\"type\": \"Ready\", \"status\": \"True\", \"reason\": \"Taken\", \"message\": \"taken\", \
                     \"lastTransitionTime\": \"2026-01-01T00:00:00Z\"}";
    let status = format!("{{\"status\": {{{fields}, \"conditions\": [{condition}]}}}}");
    let kind = format!("{kind}.storage.holdfast.dev");
    let words = ["patch", &kind, name, "--subresource=status", "--type=merge", "--patch", &status];
    world.kubectl(words).map(drop)
}
