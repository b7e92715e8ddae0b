//! `kubectl holdfast`: describes the state of a cluster's volumes, and makes the one change that needs care.
//!
//! Owns: reading and combining the objects that describe the volumes.
//! Does not own: the text of conditions; the operator and the daemons write it.
//! Costs: one LIST of each kind; `top` and `restore` document their own. Only `force-detach --yes` changes
//! anything; `preflight` creates temporary Pods.

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

use crate::cluster::ClusterClients;
use crate::top::SortBy;

/// Shows the state of a cluster's volumes, and the reasons for it.
#[derive(Debug, Parser)]
#[command(name = "kubectl-holdfast", bin_name = "kubectl holdfast", version)]
struct Settings {
    /// Kubeconfig context; default: the current one.
    #[arg(long, global = true)]
    context: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Counts volumes, nodes and object stores, and lists every problem with them. Exits with 1 if there is
    /// any.
    Status,
    /// Describes the whole state of one volume.
    Why {
        /// Name of a Volume, or with --namespace of a PersistentVolumeClaim.
        name: String,
        /// Namespace of the claim.
        #[arg(long, short)]
        namespace: Option<String>,
    },
    /// Checks the node daemon's requirements with a short-lived privileged Pod on each node; also works
    /// before the chart is installed. Exits with 1 if a node fails.
    Preflight(preflight::Preflight),
    /// Shows the load of each attached volume, one line each. Exits with 1 if a node does not answer, or if a
    /// named volume is not attached.
    Top {
        /// Names of Volumes, or of claims as NAMESPACE/NAME; default: all attached volumes.
        volumes: Vec<String>,
        /// Sort order of the lines: names ascending, figures descending.
        #[arg(long, value_enum, default_value_t = SortBy::Name)]
        sort_by: SortBy,
        /// Time between the two reads used to calculate rates.
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
        seconds: u64,
    },
    /// Prints documents for the volumes and snapshots in an ObjectStore's bucket that the cluster does not
    /// have. Runs `holdfast-operator restore` in a pod of the operator, and exits as that command does.
    Restore {
        /// Name of an ObjectStore.
        object_store: String,
        /// Prints the volumes in the trash instead.
        #[arg(long)]
        deleted: bool,
        /// Prints only Holdfast's volumes and snapshots, for a backup program that restores the claims.
        #[arg(long)]
        without_claims: bool,
        /// Namespace of the release; default: all namespaces are searched.
        #[arg(long, short)]
        namespace: Option<String>,
    },
    /// Takes a volume from a lost node. Data that the node did not upload is missing afterwards.
    ForceDetach {
        /// Name of a Volume.
        volume: String,
        /// The lost node.
        #[arg(long)]
        node: String,
        /// The node's daemon is Ready: only the volume's disk there is lost.
        #[arg(long)]
        although_ready: bool,
        /// Makes the change. Without this, the command only shows which data would be missing.
        #[arg(long)]
        yes: bool,
    },
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(Settings::parse()).await {
        Ok(code) => code,
        Err(error) => {
            let text = printable(&format!("kubectl holdfast: {error:#}"));
            drop(writeln!(io::stderr(), "{text}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(settings: Settings) -> anyhow::Result<ExitCode> {
    let cluster = ClusterClients::connect(settings.context).await?;
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
                anyhow::bail!("nothing was changed: add --yes to take the volume from the node");
            }
            force_detach::annotate(&cluster, volume, &node).await?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn say(text: &str) -> io::Result<()> {
    io::stdout().write_all(printable(text).as_bytes())
}

/// Escapes control characters except line ends and tabs: texts of objects must not control the terminal.
fn printable(text: &str) -> String {
    let escape = |char: char| match char {
        '\n' | '\t' => String::from(char),
        char if char.is_control() => char.escape_default().to_string(),
        char => String::from(char),
    };
    text.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression, found in review: an event's message could clear the terminal, or imitate our output.
    #[test]
    fn texts_of_objects_do_not_control_the_terminal() {
        assert_eq!(printable("Volume `ä`\n  is\u{1b}[2J\rReady\n"), "Volume `ä`\n  is\\u{1b}[2J\\rReady\n");
    }
}
