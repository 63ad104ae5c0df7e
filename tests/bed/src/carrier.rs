//! Carries what jobs report to the operator, and does on the way with each report what a network may do: it loses it, or
//! the answer, carries it twice, or late.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Longest time for one part of a request or an answer.
const LIMIT: Duration = Duration::from_secs(10);
/// How often what is late is looked at.
const TURN: Duration = Duration::from_millis(20);

/// What becomes of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lot {
    /// It comes, and the operator's answer goes back.
    Comes,
    /// It is lost: no answer.
    Lost,
    /// It comes, and the answer is lost: the job sends it again.
    Unanswered,
    /// It comes twice.
    Twice,
    /// The job is answered 503 and sends it again.
    Refused,
    /// The job is told that it came, and it comes after this time.
    Late(Duration),
    /// The job is told that it came, and it waits for [`Carrier::let_go`].
    Kept,
}

/// One report on its way.
#[derive(Clone, Debug)]
pub struct Report {
    /// Whether the payload has ended, or just begins.
    pub end: bool,
    /// The uid of the HTCJob.
    pub uid: String,
    /// The whole request.
    request: Vec<u8>,
}

/// What has become of the reports so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// That the operator has answered with 2xx, each time counted.
    pub stored: usize,
    /// Those lost, or late and then not taken by anybody.
    pub lost: usize,
    /// Those that came twice, or whose answer was lost.
    pub twice: usize,
    pub late: usize,
    pub refused: usize,
}

type Chooser = Box<dyn FnMut(&Report) -> Lot + Send>;

struct State {
    to: SocketAddr,
    choose: Mutex<Chooser>,
    tally: Mutex<Tally>,
    kept: Mutex<Vec<Report>>,
    over: AtomicBool,
    work: Mutex<Vec<JoinHandle<()>>>,
}

/// Ends, with all that it carries, when it is dropped.
pub struct Carrier {
    state: Arc<State>,
    address: SocketAddr,
    listening: Option<JoinHandle<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Carrier {
    /// To the receiver on this port; `choose` says what becomes of each report.
    pub fn new(to: u16, choose: impl FnMut(&Report) -> Lot + Send + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            to: (Ipv4Addr::LOCALHOST, to).into(),
            choose: Mutex::new(Box::new(choose)),
            tally: Mutex::default(),
            kept: Mutex::default(),
            over: AtomicBool::new(false),
            work: Mutex::default(),
        });
        let listening = thread::spawn({
            let state = Arc::clone(&state);
            move || {
                for stream in listener.incoming() {
                    if state.over.load(Ordering::SeqCst) {
                        return;
                    }
                    let Ok(stream) = stream else { continue };
                    let work = thread::spawn({
                        let state = Arc::clone(&state);
                        // Whoever hangs up in between gets nothing.
                        move || drop(state.take(stream))
                    });
                    let mut all = lock(&state.work);
                    all.retain(|work| !work.is_finished());
                    all.push(work);
                }
            }
        });
        Self { state, address, listening: Some(listening) }
    }

    /// The operator's argument.
    pub fn argument(&self) -> String {
        format!("--callback-url=http://{}/cloudevents", self.address)
    }

    pub fn tally(&self) -> Tally {
        *lock(&self.state.tally)
    }

    /// Reports of one HTCJob that are kept: whether each is one of an end.
    pub fn kept(&self, uid: &str) -> Vec<bool> {
        lock(&self.state.kept).iter().filter(|report| report.uid == uid).map(|report| report.end).collect()
    }

    /// Carries the oldest report of one HTCJob that is kept, of its end or of its start; the status of the answer.
    pub fn let_go(&self, uid: &str, end: bool) -> u16 {
        let report = {
            let mut kept = lock(&self.state.kept);
            let place = kept.iter().position(|report| report.uid == uid && report.end == end).expect("one is kept");
            kept.remove(place)
        };
        let answer = self.state.carry(&report).expect("an answer");
        status(&answer)
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::SeqCst);
        // It waits for somebody to call.
        let _ = TcpStream::connect(self.address);
        let _ = self.listening.take().map(JoinHandle::join);
        let work = std::mem::take(&mut *lock(&self.state.work));
        for work in work {
            drop(work.join());
        }
    }
}

impl State {
    fn take(&self, mut stream: TcpStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(LIMIT))?;
        let report = Report::read(&mut stream)?;
        let lot = (lock(&self.choose))(&report);
        let taken = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
        match lot {
            Lot::Comes => stream.write_all(&self.carry(&report)?),
            Lot::Lost => {
                lock(&self.tally).lost += 1;
                Ok(())
            }
            Lot::Unanswered => {
                lock(&self.tally).twice += 1;
                self.carry(&report).map(drop)
            }
            Lot::Twice => {
                lock(&self.tally).twice += 1;
                self.carry(&report)?;
                stream.write_all(&self.carry(&report)?)
            }
            Lot::Refused => {
                lock(&self.tally).refused += 1;
                stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            }
            Lot::Late(by) => {
                lock(&self.tally).late += 1;
                stream.write_all(taken)?;
                drop(stream);
                let began = Instant::now();
                while began.elapsed() < by && !self.over.load(Ordering::SeqCst) {
                    thread::sleep(TURN);
                }
                let answer = self.carry(&report);
                if answer.is_err() {
                    lock(&self.tally).lost += 1;
                }
                answer.map(drop)
            }
            Lot::Kept => {
                lock(&self.kept).push(report);
                stream.write_all(taken)
            }
        }
    }

    /// The operator's answer.
    fn carry(&self, report: &Report) -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(self.to)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.write_all(&report.request)?;
        let answer = message(&mut stream)?;
        lock(&self.tally).stored += usize::from((200..300).contains(&status(&answer)));
        Ok(answer)
    }
}

impl Report {
    fn read(stream: &mut TcpStream) -> std::io::Result<Self> {
        let request = message(stream)?;
        let text = String::from_utf8_lossy(&request);
        let headers: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once(": ")).collect();
        let header = |name: &str| {
            let its = headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
            its.map_or("", |(_, value)| value.trim()).to_owned()
        };
        Ok(Self { end: header("ce-type") == "htcjob.cloudevent", uid: header("ce-subject"), request: request.clone() })
    }
}

/// One request or answer, with its body.
fn message(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let head = bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|end| end + 4);
        if let Some(end) = head {
            let text = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok());
            if bytes.len() >= end + length.unwrap_or(0_usize) {
                return Ok(bytes);
            }
        }
        match stream.read(&mut part)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            count => bytes.extend(&part[..count]),
        }
    }
}

fn status(answer: &[u8]) -> u16 {
    let text = String::from_utf8_lossy(answer);
    text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default()
}
