//! Servers on loopback from which jobs fetch files, as sites have them: nginx and XRootD.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::account::Account;
use crate::assets::Assets;
use crate::error::Result;
use crate::owned::{Owned, Spec};
use crate::ports::Port;
use crate::scratch::Scratch;
use crate::tool::run_ok;
use crate::wait::wait_for;

/// Less than a second on a quiet machine.
const READY: Duration = Duration::from_secs(60);
/// For one tool.
const TOOL: Duration = Duration::from_mins(1);

/// With what nginx's URLs are signed.
const SECRET: &str = "testbedsecret";

/// A program that serves files, and can be away for a while.
#[derive(Debug)]
struct Server {
    // Fields drop in this order: the program before its folder.
    running: Mutex<Option<Owned>>,
    spec: Spec,
    port: Port,
    scratch: Scratch,
}

impl Server {
    fn start_again(&self) -> Result<()> {
        let server = Owned::spawn(&self.spec)?;
        wait_for("a file server", READY, || TcpStream::connect((Ipv4Addr::LOCALHOST, self.port.number)).map(drop))
            .map_err(|error| server.must_run().err().unwrap_or(error))?;
        *self.running() = Some(server);
        Ok(())
    }

    fn stop(&self) -> Result<()> {
        self.running().take().map_or(Ok(()), |server| server.kill9())
    }

    fn running(&self) -> MutexGuard<'_, Option<Owned>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the file that it gives for this path.
    fn put(&self, path: &str, content: &str, mode: u32) -> Result<()> {
        let (account, file) =
            (Account::unprivileged(), self.scratch.path().join("files").join(path.trim_start_matches('/')));
        if let Some(folder) = file.parent() {
            account.make_dir(folder, 0o755)?;
        }
        account.write(&file, content, mode)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.scratch.path().join(name)).unwrap_or_default()
    }
}

/// A running nginx with TLS; ends with this value. Its folders:
/// - `/closed/` is refused to everybody: 403.
/// - `/busy/` is given out once in five seconds, to all jobs of this machine together: else 429.
/// - `/signed/` wants what [`Nginx::signed`] adds: else 403, and 410 after its end.
#[derive(Debug)]
pub struct Nginx {
    server: Server,
}

impl Nginx {
    /// Starts a server without files, with the certificate and key for 127.0.0.1 in these two texts.
    pub fn start(assets: &Assets, certificate: &str, key: &str) -> Result<Self> {
        assets.must_be_reachable()?;
        let (scratch, port, account) = (Scratch::new()?, Port::reserve()?, Account::unprivileged());
        let (temporary, files) = (scratch.dir("tmp")?, scratch.dir("files")?);
        let folder = scratch.path().display();
        let unused = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|what| format!("{what}_temp_path {};\n", temporary.display()))
            .concat();
        // One process: a master's worker would outlive it when it is killed.
        let config = format!(
            "daemon off;\nmaster_process off;\npid {folder}/nginx.pid;\nerror_log stderr;\nevents {{ worker_connections 64; }}\n\
             http {{\n{unused}access_log {folder}/access.log;\nlimit_req_zone $binary_remote_addr zone=busy:32k rate=12r/m;\n\
             server {{\nlisten 127.0.0.1:{} ssl;\nssl_certificate {folder}/tls.crt;\nssl_certificate_key {folder}/tls.key;\n\
             root {};\nautoindex off;\nlocation /closed/ {{ deny all; }}\n\
             location /busy/ {{ limit_req zone=busy; limit_req_status 429; }}\n\
             location /signed/ {{\nsecure_link $arg_signature,$arg_expires;\nsecure_link_md5 \"$secure_link_expires$uri {SECRET}\";\n\
             if ($secure_link = \"\") {{ return 403; }}\nif ($secure_link = \"0\") {{ return 410; }}\n}}\n}}\n}}\n",
            port.number,
            files.display()
        );
        let file = scratch.path().join("nginx.conf");
        account.write(&file, config, 0o644)?;
        account.write(&scratch.path().join("tls.crt"), certificate, 0o644)?;
        account.write(&scratch.path().join("tls.key"), key, 0o600)?;
        let spec = Spec::new(assets.nginx(), scratch.path().join("nginx.log"))
            .args(["-e", "stderr", "-p"])
            .arg(scratch.path())
            .arg("-c")
            .arg(&file);
        let nginx = Self { server: Server { running: Mutex::new(None), spec, port, scratch } };
        nginx.start_again()?;
        Ok(nginx)
    }

    /// Starts it after [`Nginx::stop`]: same port, same files.
    pub fn start_again(&self) -> Result<()> {
        self.server.start_again()
    }

    /// Ends it: connections are refused until [`Nginx::start_again`].
    pub fn stop(&self) -> Result<()> {
        self.server.stop()
    }

    /// Writes the file that it gives for this path.
    pub fn put(&self, path: &str, content: &str) -> Result<()> {
        self.server.put(path, content, 0o644)
    }

    /// The URL of a path, which may have a query.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}{path}", self.server.port.number)
    }

    /// The URL of a path below `/signed/` that is good for so many seconds from now on, or has been until then.
    pub fn signed(&self, path: &str, seconds: i64) -> Result<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let until = now.saturating_add_signed(seconds);
        let text = format!("{until}{path} {SECRET}");
        let hex = run_ok("signing a URL", &mut Command::new("md5sum"), &text, TOOL)?;
        let bytes: Vec<u8> =
            (0..16).filter_map(|at| u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok()).collect();
        Ok(self.url(&format!("{path}?signature={}&expires={until}", URL_SAFE_NO_PAD.encode(bytes))))
    }

    /// What it has answered to the requests for this path, one after the other: 200, 403 and the like.
    #[must_use]
    pub fn answers(&self, path: &str) -> Vec<String> {
        let log = self.server.read("access.log");
        let answers = log.lines().filter_map(|line| {
            let (request, answer) = line.split_once(" HTTP/1.1\" ")?;
            let (_, asked) = request.split_once("\"GET ")?;
            (asked.split('?').next() == Some(path)).then(|| answer.chars().take(3).collect::<String>())
        });
        answers.collect()
    }
}

/// A running XRootD that everybody may read `/eos` of; ends with this value.
///
/// It listens on all addresses of this machine: it has no setting for one of them.
#[derive(Debug)]
pub struct XRootD {
    server: Server,
}

impl XRootD {
    /// Starts a server without files.
    pub fn start(assets: &Assets) -> Result<Self> {
        assets.must_be_reachable()?;
        let (scratch, port) = (Scratch::new()?, Port::reserve()?);
        let (own, files) = (scratch.dir("own")?, scratch.dir("files")?);
        let config = format!(
            "xrd.port {}\nall.export /eos r/o\noss.localroot {}\nall.adminpath {own}\nall.pidpath {own}\n",
            port.number,
            files.display(),
            own = own.display()
        );
        let file = scratch.path().join("xrootd.cf");
        Account::unprivileged().write(&file, config, 0o644)?;
        let program = assets.xrootd_bin().join("xrootd");
        let spec = Spec::new(program, scratch.path().join("xrootd.log")).arg("-c").arg(&file);
        let xrootd = Self { server: Server { running: Mutex::new(None), spec, port, scratch } };
        xrootd.start_again()?;
        Ok(xrootd)
    }

    /// Starts it after [`XRootD::stop`]: same port, same files.
    pub fn start_again(&self) -> Result<()> {
        self.server.start_again()
    }

    /// Ends it: connections are refused until [`XRootD::start_again`].
    pub fn stop(&self) -> Result<()> {
        self.server.stop()
    }

    /// Writes the file that it gives for this path, which begins with `/eos/`.
    pub fn put(&self, path: &str, content: &str) -> Result<()> {
        self.server.put(path, content, 0o644)
    }

    /// The same, and nobody may read it.
    pub fn put_closed(&self, path: &str) -> Result<()> {
        self.server.put(path, "closed", 0o000)
    }

    /// The URL of a path.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("root://127.0.0.1:{}/{path}", self.server.port.number)
    }

    /// How often it has refused to open this path.
    #[must_use]
    pub fn refusals(&self, path: &str) -> usize {
        let refused = format!(" Unable to open {path}; ");
        self.server.read("xrootd.log").lines().filter(|line| line.contains(&refused)).count()
    }
}
