//! `holdfast-node fenced`: data that fenced writers of this node did not upload. Reads the state directory;
//! needs no daemon.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use holdfast_crds::ByteSize;
use holdfast_service::chain;
use serde_json::{Value, json};

use super::output::table;
use crate::config::DEFAULT_STATE_DIR;
use crate::failure::Failure;
use crate::node::fenced::{self, Contents, FencedError, Kept};

/// Arguments of `fenced`.
#[derive(Debug, Args)]
pub(super) struct Fenced {
    #[command(subcommand)]
    verb: FencedVerb,
    /// The daemon's state directory
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        default_value = DEFAULT_STATE_DIR,
        env = "HOLDFAST_STATE_DIR"
    )]
    state_dir: PathBuf,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum FencedVerb {
    /// Show the preserved data
    List,
    /// Write it to a sparse image of the volume, and the valid byte ranges to FILE.json
    Export {
        /// Name of the preserved data, as shown by `list`
        name: String,
        /// The image to create
        #[arg(long, value_name = "FILE")]
        output: PathBuf,
        /// Replace the image and its JSON if they exist
        #[arg(long)]
        overwrite: bool,
    },
    /// Delete it permanently
    Delete {
        /// Name of the preserved data, as shown by `list`
        name: String,
        /// Delete the only copy of the data
        #[arg(long)]
        confirm_data_loss: bool,
    },
}

impl Fenced {
    /// Runs the command; its output goes to `out`.
    pub(super) fn run(&self, out: &mut String) -> Result<(), Failure> {
        self.try_run(out).map_err(|error| Failure::new(error.kind(), &error))
    }

    fn try_run(&self, out: &mut String) -> Result<(), FencedError> {
        match &self.verb {
            FencedVerb::List => {
                let all = fenced::list(&self.state_dir)?;
                let all: Vec<_> = all.iter().map(|kept| (kept, kept.contents())).collect();
                out.push_str(&if self.json {
                    format!("{:#}\n", json!({ "fenced": all.iter().map(json_row).collect::<Vec<_>>() }))
                } else {
                    table(
                        ["NAME", "VOLUME", "EPOCH", "SIZE", "NOT-UPLOADED", "MESSAGE"],
                        all.iter().map(text_row),
                    )
                });
            }
            FencedVerb::Export { name, output, overwrite } => {
                let kept = fenced::find(&self.state_dir, name)?;
                let done = fenced::export(&kept, output, *overwrite)?;
                out.push_str(&if self.json {
                    let answer = json!({
                        "image": done.image,
                        "map": done.map,
                        "size_bytes": done.size_bytes,
                        "not_uploaded_bytes": done.bytes,
                        "ranges": done.ranges,
                        "unreadable_bytes": done.unreadable_bytes,
                    });
                    format!("{answer:#}\n")
                } else {
                    format!(
                        "{}: {}, of which {} were not uploaded (ranges: {}, listed in {})\n",
                        done.image.display(),
                        ByteSize(done.size_bytes),
                        ByteSize(done.bytes),
                        done.ranges,
                        done.map.display()
                    )
                });
                if done.unreadable_bytes > 0 {
                    return Err(FencedError::Unreadable { bytes: done.unreadable_bytes, map: done.map });
                }
            }
            FencedVerb::Delete { name, confirm_data_loss } => {
                fenced::find(&self.state_dir, name)?.delete(*confirm_data_loss)?;
                if self.json {
                    out.push_str("{}\n");
                }
            }
        }
        Ok(())
    }
}

type FencedRow<'a> = (&'a Kept, Result<Contents, FencedError>);

fn text_row((kept, contents): &FencedRow<'_>) -> [String; 6] {
    let unknown = || "-".to_owned();
    match contents {
        Ok(contents) => [
            kept.name.clone(),
            contents.volume.to_string(),
            contents.epoch.to_string(),
            ByteSize(contents.sectors * holdfast_types::SECTOR_BYTES).to_string(),
            ByteSize(contents.bytes()).to_string(),
            unknown(),
        ],
        Err(error) => [kept.name.clone(), unknown(), unknown(), unknown(), unknown(), chain(error)],
    }
}

fn json_row((kept, contents): &FencedRow<'_>) -> Value {
    match contents {
        Ok(contents) => json!({
            "name": kept.name,
            "volume_id": contents.volume.as_str(),
            "epoch": contents.epoch.0,
            "size_bytes": contents.sectors * holdfast_types::SECTOR_BYTES,
            "not_uploaded_bytes": contents.bytes(),
        }),
        Err(error) => json!({ "name": kept.name, "message": chain(error) }),
    }
}
