//! Flags for commands that create an HTCJob: dry run and output format.

use clap::ValueEnum;
use htc_api::HTCJob;
use kube::ResourceExt as _;
use kube::api::PostParams;

use super::CommandFailure;
use crate::terminal as say;
use crate::terminal::say;

/// Flags of every command that creates an HTCJob.
#[derive(clap::Args)]
pub(super) struct New {
    /// `client` prints the new HTCJob and does not send it; `server` sends it, but it is not stored.
    #[arg(long, value_enum, default_value = "none", value_name = "none|client|server", hide_possible_values = true)]
    pub(super) dry_run: DryRun,
    /// Print the new HTCJob in this format.
    #[arg(short, long, value_enum)]
    output: Option<ObjectFormat>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum DryRun {
    None,
    Client,
    Server,
}

#[derive(Clone, Copy, ValueEnum)]
enum ObjectFormat {
    Json,
    Yaml,
    Name,
}

impl New {
    pub(super) fn parameters(&self) -> PostParams {
        PostParams { dry_run: self.dry_run == DryRun::Server, ..PostParams::default() }
    }

    /// Prints the HTCJob in the requested format; or else that it is created, and `more` about it.
    pub(super) fn print(&self, new: &HTCJob, more: &str) -> Result<(), CommandFailure> {
        let name = new.name_any();
        match self.output {
            Some(ObjectFormat::Json) => say::json(new)?,
            Some(ObjectFormat::Yaml) => say::yaml(new)?,
            Some(ObjectFormat::Name) => say!("htcjob.htc.cern.ch/{name}"),
            None => {
                let dry = match self.dry_run {
                    DryRun::None => "",
                    DryRun::Client => " (dry run)",
                    DryRun::Server => " (server dry run)",
                };
                say!("htcjob.htc.cern.ch/{name} created{dry}{more}");
            }
        }
        Ok(())
    }
}
