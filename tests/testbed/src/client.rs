//! A client of a pool, as remote as a client on the same machine can be.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::account::Account;
use crate::error::Result;
use crate::pool::Pool;
use crate::tool::{Finished, run, run_ok};

/// For one tool: those of HTCondor have no time limit of their own.
const TOOL: Duration = Duration::from_mins(1);

/// A folder with a configuration that names the pool's collector and schedd, and a token. Nothing in it is shared with
/// the pool. It lies in the pool's run folder and is gone with it.
#[derive(Debug, Clone)]
pub struct Client {
    identity: String,
    account: Account,
    folder: PathBuf,
    bin: PathBuf,
}

impl Client {
    pub(crate) fn new(pool: &Pool, identity: &str, account: Account) -> Result<Self> {
        let folder = pool.scratch().path().join(format!("client-{}-{identity}", account.uid));
        account.make_dir(&folder, 0o755)?;
        for (name, mode) in [("home", 0o755), ("tokens", 0o700)] {
            account.make_dir(&folder.join(name), mode)?;
        }
        let token = pool.tool("condor_token_create", &["-identity", identity, "-key", "POOL"])?;
        // HTCondor silently ignores a token that others may read.
        account.write(&folder.join("tokens/token"), token, 0o600)?;
        let config = format!(
            "RELEASE_DIR = {}\nLIBEXEC = $(RELEASE_DIR)/libexec/condor\nLOCAL_DIR = {}\nLOCAL_CONFIG_FILE =\nLOCAL_CONFIG_DIR =\nREQUIRE_LOCAL_CONFIG_FILE = false\n\
             COLLECTOR_HOST = {}\nSCHEDD_HOST = {}\nSEC_TOKEN_DIRECTORY = {}\nSEC_CLIENT_AUTHENTICATION_METHODS = IDTOKENS\n",
            pool.release_dir().display(),
            folder.display(),
            pool.address(),
            pool.schedd_name(),
            folder.join("tokens").display(),
        );
        account.write(&folder.join("condor_config"), config, 0o644)?;
        Ok(Self { identity: identity.to_owned(), account, folder, bin: pool.bin_dir() })
    }

    /// Who it is, as in `alice@test`.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Its `condor_config`.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.folder.join("condor_config")
    }

    /// Its token (mode 0600, owned by the client's account).
    #[must_use]
    pub fn token(&self) -> PathBuf {
        self.folder.join("tokens/token")
    }

    /// A folder it may write to, and the one its tools run in.
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.folder.join("home")
    }

    /// The folder of its tools.
    #[must_use]
    pub fn bin_dir(&self) -> &Path {
        &self.bin
    }

    /// One of HTCondor's tools as this client, run by the client's account with nothing else in its environment.
    #[must_use]
    pub fn command(&self, tool: &str) -> Command {
        let mut command = self.account.command(&self.bin.join(tool));
        command
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", self.bin.display()))
            .env("HOME", self.home())
            .env("CONDOR_CONFIG", self.config())
            .current_dir(self.home());
        command
    }

    /// Runs a tool with `input` on its stdin, to its end, however it ends, within a minute.
    pub fn run(&self, tool: &str, args: &[&str], input: &str) -> Result<Finished> {
        run(&self.doing(), self.command(tool).args(args), input, TOOL)
    }

    /// Runs a tool, which must succeed within a minute; gives its standard output.
    pub fn ok(&self, tool: &str, args: &[&str]) -> Result<String> {
        run_ok(&self.doing(), self.command(tool).args(args), "", TOOL)
    }

    /// Submits a description with `-spool`; gives the first job's id, as in `1.0`.
    pub fn submit(&self, description: &str) -> Result<String> {
        let command = &mut self.command("condor_submit");
        let ids = run_ok(&self.doing(), command.args(["-spool", "-terse", "-"]), description, TOOL)?;
        Ok(ids.split_whitespace().next().unwrap_or_default().to_owned())
    }

    fn doing(&self) -> String {
        format!("using the test bed's pool as {}", self.identity)
    }
}
