//! `kubectl holdfast`: the state of a cluster's volumes in words, and the one change that needs care.
//!
//! Owns: reading the objects that say how volumes are, and putting them together.
//! Does not own: what a condition says; operator and daemons write it.
//! Costs: one LIST of each kind; `top` and `restore` say their own. Only `force-detach --yes` changes
//! anything; `preflight` makes Pods for a time.

mod cluster;
mod force_detach;
mod preflight;
mod problem;
mod restore;
mod status;
mod top;
mod why;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::cluster::Cluster;
use crate::top::SortBy;

/// Says how the volumes of a cluster are, and why.
#[derive(Debug, Parser)]
#[command(name = "kubectl-holdfast", bin_name = "kubectl holdfast", version)]
struct Settings {
    /// Context of the kubeconfig; otherwise its current one.
    #[arg(long, global = true)]
    context: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Counts volumes, nodes and object stores, and names everything that is wrong with them. Ends with 1 if
    /// anything is.
    Status,
    /// The whole state of one volume in words.
    Why {
        /// Name of a Volume, or with --namespace of a PersistentVolumeClaim.
        name: String,
        /// Namespace of the claim.
        #[arg(long, short)]
        namespace: Option<String>,
    },
    /// Checks what node daemons need of nodes, by a short-lived privileged Pod on each; also before the chart
    /// is installed. Ends with 1 if a node is not fit.
    Preflight(preflight::Preflight),
    /// The load of each attached volume, one line each. Ends with 1 if a node does not answer, or a volume
    /// that is named is not attached.
    Top {
        /// Names of Volumes, or of claims as NAMESPACE/NAME; otherwise all that are attached.
        volumes: Vec<String>,
        /// Order of the lines: names upwards, figures downwards.
        #[arg(long, value_enum, default_value_t = SortBy::Name)]
        sort_by: SortBy,
        /// Time between the two reads that rates are made of.
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
        seconds: u64,
    },
    /// Prints documents for the volumes and snapshots in the bucket of an ObjectStore that the cluster does
    /// not have. Runs `holdfast-operator restore` in a pod of the operator, and ends as that command does.
    Restore {
        /// Name of an ObjectStore.
        object_store: String,
        /// Those of the volumes in the trash instead.
        #[arg(long)]
        deleted: bool,
        /// Volumes and snapshots of Holdfast alone, for a backup program that restores the claims.
        #[arg(long)]
        without_claims: bool,
        /// Namespace of the release; otherwise it is looked for in all.
        #[arg(long, short)]
        namespace: Option<String>,
    },
    /// Takes a volume from a node that is lost. What that node did not upload is missing afterwards.
    ForceDetach {
        /// Name of a Volume.
        volume: String,
        /// The node that is lost.
        #[arg(long)]
        node: String,
        /// The node's daemon is Ready: only the volume's disk there is lost.
        #[arg(long)]
        although_ready: bool,
        /// Do it. Without this it says what would be missing.
        #[arg(long)]
        yes: bool,
    },
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(Settings::parse()).await {
        Ok(code) => code,
        Err(error) => {
            drop(writeln!(io::stderr(), "kubectl holdfast: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(settings: Settings) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::connect(settings.context).await?;
    match settings.command {
        Command::Status => {
            let seen = cluster.read().await?;
            say(&status::status(&seen))?;
            Ok(if problem::all(&seen).is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Command::Preflight(settings) => preflight::run(&cluster, settings).await,
        Command::Why { name, namespace } => {
            let seen = cluster.read().await?;
            let volume = seen.find(&name, namespace.as_deref())?;
            let events = cluster.events(volume).await?;
            say(&why::why(volume, &seen, &events))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Top { volumes, sort_by, seconds } => {
            let pause = Duration::from_secs(seconds);
            let (text, is_complete) = top::top(&cluster, &volumes, sort_by, pause).await?;
            say(&text)?;
            Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Command::Restore { object_store, deleted, without_claims, namespace } => {
            let options = [(deleted, "--deleted"), (without_claims, "--without-claims")];
            let options: Vec<&str> = options.iter().filter(|(is_set, _)| *is_set).map(|it| it.1).collect();
            restore::restore(&cluster, &object_store, &options, namespace.as_deref()).await
        }
        Command::ForceDetach { volume, node, although_ready, yes } => {
            let seen = cluster.read().await?;
            let volume = seen.find(&volume, None)?;
            let warning = force_detach::check(volume, &seen, &node, although_ready)?;
            say(&warning)?;
            if !yes {
                anyhow::bail!("nothing was changed: say --yes as well, to do it");
            }
            force_detach::annotate(&cluster, volume, &node).await?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn say(text: &str) -> std::io::Result<()> {
    std::io::stdout().write_all(text.as_bytes())
}
