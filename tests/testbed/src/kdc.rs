//! A Kerberos KDC on loopback.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::account::Account;
use crate::assets::Assets;
use crate::error::{Doing, Result};
use crate::owned::{Owned, Spec};
use crate::ports::Port;
use crate::scratch::Scratch;
use crate::tool::run_ok;
use crate::wait::wait_for;

/// Less than a second on a quiet machine.
const READY: Duration = Duration::from_secs(60);
/// For one tool.
const TOOL: Duration = Duration::from_mins(1);

/// The realm of every KDC of the test bed.
pub const REALM: &str = "TEST";

/// A running KDC; ends with this value.
#[derive(Debug)]
pub struct Kdc {
    // Fields drop in this order: the server before its folder.
    server: Mutex<Option<Owned>>,
    home: PathBuf,
    port: Port,
    scratch: Scratch,
}

impl Kdc {
    /// Starts a KDC without users.
    pub fn start(assets: &Assets) -> Result<Self> {
        assets.must_be_reachable()?;
        let (scratch, port, home) = (Scratch::new()?, Port::reserve()?, assets.kerberos().to_owned());
        let folder = scratch.dir("kdc")?;
        let place = home.join("plugins");
        let plugins = home.join(fs::read_to_string(&place).doing("reading", &place)?);
        let modules = format!("[dbmodules]\n db_module_dir = {}\n", plugins.join("kdb").display());
        let client = format!(
            "[libdefaults]\n default_realm = {REALM}\n plugin_base_dir = {}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n rdns = false\n \
             dns_canonicalize_hostname = false\n udp_preference_limit = 1\n\
             [realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{}\n }}\n{modules}",
            plugins.display(),
            port.number
        );
        let kdc = format!(
            "[kdcdefaults]\n kdc_listen = \"\"\n kdc_tcp_listen = 127.0.0.1:{}\n\
             [realms]\n {REALM} = {{\n  database_name = {}\n  key_stash_file = {}\n  max_life = 10h\n  \
             default_principal_flags = +preauth\n }}\n[logging]\n kdc = FILE:{}\n{modules}",
            port.number,
            folder.join("principal").display(),
            folder.join("stash").display(),
            folder.join("kdc.log").display(),
        );
        let account = Account::unprivileged();
        account.write(&scratch.path().join("krb5.conf"), client, 0o644)?;
        account.write(&scratch.path().join("kdc.conf"), kdc, 0o644)?;
        let kdc = Self { server: Mutex::new(None), home, port, scratch };
        kdc.tool("kdb5_util", &["create", "-s", "-P", "master"])?;
        kdc.start_again()?;
        Ok(kdc)
    }

    /// Starts it after [`Kdc::stop`]: same port, same users.
    pub fn start_again(&self) -> Result<()> {
        let spec = Spec::new(self.home.join("usr/sbin/krb5kdc"), self.scratch.path().join("krb5kdc.log"))
            .args(["-n", "-r", REALM])
            .env("KRB5_CONFIG", self.config())
            .env("KRB5_KDC_PROFILE", self.scratch.path().join("kdc.conf"));
        *self.server() = Some(Owned::spawn(&spec)?);
        wait_for("the KDC", READY, || {
            std::net::TcpStream::connect((std::net::Ipv4Addr::LOCALHOST, self.port.number)).map(drop)
        })
    }

    /// Ends it; nobody gets a ticket until [`Kdc::start_again`].
    pub fn stop(&self) -> Result<()> {
        self.server().take().map_or(Ok(()), |server| server.kill9())
    }

    fn server(&self) -> std::sync::MutexGuard<'_, Option<Owned>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its clients' `krb5.conf`.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.scratch.path().join("krb5.conf")
    }

    /// The folder of `kinit` and `klist`.
    #[must_use]
    pub fn bin_dir(&self) -> PathBuf {
        self.home.join("usr/bin")
    }

    /// Adds a user, whose tickets live so long (`20s`, `10h`).
    pub fn add_user(&self, name: &str, password: &str, life: &str) -> Result<()> {
        self.admin(&format!("addprinc -pw {password} -maxlife {life} {name}"))
    }

    /// Gives a user another password.
    pub fn change_password(&self, name: &str, password: &str) -> Result<()> {
        self.admin(&format!("cpw -pw {password} {name}"))
    }

    /// A keytab with a new random key for this user; the user's password is good no longer.
    pub fn keytab(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.scratch.path().join("kdc").join(format!("{}.keytab", name.replace('/', "-")));
        let _ = fs::remove_file(&path);
        self.admin(&format!("ktadd -k {} {name}", path.display()))?;
        fs::read(&path).doing("reading", &path)
    }

    fn admin(&self, command: &str) -> Result<()> {
        self.tool("kadmin.local", &["-q", command])
    }

    fn tool(&self, name: &str, arguments: &[&str]) -> Result<()> {
        let mut command = Account::unprivileged().command(&self.home.join("usr/sbin").join(name));
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("KRB5_CONFIG", self.config())
            .env("KRB5_KDC_PROFILE", self.scratch.path().join("kdc.conf"))
            .args(["-r", REALM])
            .args(arguments)
            .current_dir(self.folder());
        run_ok("filling the test bed's KDC", &mut command, "", TOOL).map(drop)
    }

    fn folder(&self) -> &Path {
        self.scratch.path()
    }
}
