//! Rows 9 and 10: jobs report their ends themselves. How soon a status counts them; and how many reports one operator takes.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use testbed::{Account, Port};

use super::{LONG, ends, percentile, rate, seconds};
use crate::bed::Bed;
use crate::cluster::htcjob;
use crate::error::{Asking as _, Error, Result};
use crate::monitor::value;
use crate::raw::Raw;
use crate::report::{Line, Report};
use crate::{Options, say};

const KEY: &str = "0123456789abcdef0123456789abcdef";
/// Connections over which they are sent, each with one on its way.
const SENDERS: u32 = 32;
/// HTCJobs whose jobs report in row 10, and how often each job does.
const HTCJOBS: u32 = 10;
const EACH: u32 = 5;
/// Counts the callbacks that are durable.
const STORED: &str = "htc_callbacks_total{outcome=\"Stored\"}";
/// Longest time for an answer.
const LIMIT: Duration = Duration::from_secs(30);

pub(crate) fn measure(bed: &mut Bed, _: &Raw, options: &Options, report: &mut Report) -> Result<()> {
    let (port, monitor) = (Port::reserve()?, Port::reserve()?);
    let keys = bed.scratch.path().join("callback-keys");
    Account::unprivileged().write(&keys, KEY, 0o600)?;
    bed.restart_with(&[
        format!("--callback-url=http://127.0.0.1:{}/cloudevents", port.number),
        format!("--callback-listen=127.0.0.1:{}", port.number),
        format!("--callback-key-file={}", keys.display()),
        format!("--metrics-bind-address=127.0.0.1:{}", monitor.number),
    ])?;
    if options.rows.contains(&9) {
        soon(bed, options, report)?;
    }
    if options.rows.contains(&10) {
        many(bed, port.number, monitor.number, options, report)?;
    }
    bed.restart_with(&[])
}

/// Row 9.
fn soon(bed: &mut Bed, options: &Options, report: &mut Report) -> Result<()> {
    say(&format!("row 9: the reported ends of {} jobs", options.ends));
    let namespace = bed.namespace()?;
    ends::create(bed, options, &namespace, Duration::ZERO)?;
    let (delays, _) = ends::delays(bed, options, &namespace, false)?;
    let (p50, p99) = (percentile(&delays, 0.5), percentile(&delays, 0.99));
    say(&format!("row 9: p50 {}, p99 {}", seconds(p50), seconds(p99)));
    report.lines.push(Line {
        row: 9,
        what: format!("the last line of {} payloads to the status, with callbacks", options.ends),
        operator: format!("p50 {:.0} ms, p99 {:.0} ms", p50 * 1e3, p99 * 1e3),
        raw: "–".to_owned(),
        aim: "p50 under 150 ms, p99 under 1 s".to_owned(),
        reached: Some(p50 < 0.15 && p99 < 1.0),
        numbers: [("jobs", f64::from(options.ends)), ("p50Seconds", p50), ("p99Seconds", p99)].into(),
        ..Line::default()
    });
    Ok(())
}

/// Somebody who reports: the uid, the name and a job's id.
struct Reporter {
    uid: String,
    name: String,
    id: String,
}

/// Row 10.
fn many(bed: &mut Bed, port: u16, monitor: u16, options: &Options, report: &mut Report) -> Result<()> {
    let jobs = options.callbacks.div_ceil(EACH * HTCJOBS);
    say(&format!("row 10: {} callbacks of {HTCJOBS} HTCJobs with {jobs} jobs each", options.callbacks));
    bed.pool.set_start(false)?;
    let namespace = bed.namespace()?;
    bed.cluster.create(&namespace, (0..HTCJOBS).map(|number| htcjob(&format!("reports{number}"), jobs, "true")))?;
    let all = HTCJOBS as usize;
    bed.cluster.seen.wait("the ids of those that report", &namespace, LONG, |tally| tally.with_ids == all)?;
    let reporters = reporters(bed, &namespace)?;
    let usage = bed.usage()?;
    let before = value(monitor, STORED)?;
    let (took, mut answers) = send(port, &reporters, options.callbacks)?;
    let cpu = bed.usage()?.cpu - usage.cpu;
    let kept = value(monitor, STORED)? - before;
    if kept < f64::from(options.callbacks) {
        return Err(Error::Unexpected(format!("{kept} of {} callbacks are counted as stored", options.callbacks)));
    }
    answers.sort_by(f64::total_cmp);
    let (per_second, p99) = (rate(options.callbacks, took), percentile(&answers, 0.99));
    say(&format!("row 10: {per_second:.0}/s, an answer after {} (p99)", seconds(p99)));
    report.lines.push(Line {
        row: 10,
        what: format!("{} callbacks over {SENDERS} connections, each answered when it is durable", options.callbacks),
        operator: format!(
            "{per_second:.0}/s; an answer after {:.0} ms (p50), {:.0} ms (p99); CPU {cpu:.1} s",
            percentile(&answers, 0.5) * 1e3,
            p99 * 1e3
        ),
        raw: "–".to_owned(),
        aim: "2,000/s".to_owned(),
        reached: Some(per_second >= 2000.0),
        numbers: [
            ("callbacks", f64::from(options.callbacks)),
            ("seconds", took),
            ("perSecond", per_second),
            ("answerP99Seconds", p99),
            ("cpuSeconds", cpu),
        ]
        .into(),
        ..Line::default()
    });
    bed.clear(&namespace)
}

fn reporters(bed: &Bed, namespace: &str) -> Result<Vec<Reporter>> {
    let arguments = ["-allusers", "-af", "HTCJobUID", "JobBatchName", "ClusterId", "ProcId"];
    let answer = bed.pool.tool("condor_q", &arguments)?;
    let read = |line: &str| {
        let [uid, name, cluster, proc] = line.split_whitespace().collect::<Vec<_>>()[..] else { return None };
        let name = name.strip_prefix(namespace)?.strip_prefix('/')?.to_owned();
        Some(Reporter { uid: uid.to_owned(), name, id: format!("{cluster}.{proc}") })
    };
    let reporters: Vec<Reporter> = answer.lines().filter_map(read).collect();
    if reporters.is_empty() { Err(Error::Unexpected(format!("no job in {answer:?}"))) } else { Ok(reporters) }
}

fn token(uid: &str) -> Result<String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(KEY.as_bytes()).asking("make a token")?;
    mac.update(uid.as_bytes());
    let hex = |text: String, byte: &u8| text + &format!("{byte:02x}");
    Ok(mac.finalize().into_bytes().iter().fold(String::new(), hex))
}

/// Sends so many; how long that took, and how long each answer did, in seconds.
fn send(port: u16, reporters: &[Reporter], count: u32) -> Result<(f64, Vec<f64>)> {
    let next = AtomicU32::new(0);
    let requests: Vec<(String, &Reporter)> =
        reporters.iter().map(|reporter| Ok((token(&reporter.uid)?, reporter))).collect::<Result<_>>()?;
    let began = Instant::now();
    let work = || -> Result<Vec<f64>> {
        let mut stream = connect(port)?;
        let mut answers = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(answers);
            }
            let (token, Reporter { uid, name, id }) = &requests[number as usize % requests.len()];
            let body = format!("{{\"name\":\"{name}\",\"jobid\":\"{id}\"}}");
            let request = format!(
                "POST /cloudevents HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n\
                 ce-specversion: 1.0\r\nce-type: htcjob.cloudevent.started\r\nce-source: cern.ch\r\nce-subject: {uid}\r\n\
                 ce-id: bench-{number}\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            let sent = Instant::now();
            let answer = exchange(&mut stream, request.as_bytes())?;
            if !answer.starts_with("HTTP/1.1 204") {
                return Err(Error::Unexpected(format!("a callback was answered with {answer}")));
            }
            answers.push(sent.elapsed().as_secs_f64());
        }
    };
    let answers = thread::scope(|scope| {
        let senders: Vec<_> = (0..SENDERS).map(|_| scope.spawn(work)).collect();
        let mut answers = Vec::new();
        for sender in senders {
            let its = sender.join().map_err(|_| Error::Unexpected("a sender came to no end".to_owned()))?;
            answers.extend(its?);
        }
        Ok::<_, Error>(answers)
    })?;
    Ok((began.elapsed().as_secs_f64(), answers))
}

fn connect(port: u16) -> Result<TcpStream> {
    let address: SocketAddr = (Ipv4Addr::LOCALHOST, port).into();
    let stream = TcpStream::connect(address).asking("reach the receiver")?;
    stream.set_read_timeout(Some(LIMIT)).asking("reach the receiver")?;
    stream.set_nodelay(true).asking("reach the receiver")?;
    Ok(stream)
}

/// One request without a body in its answer; the head of the answer.
fn exchange(stream: &mut TcpStream, request: &[u8]) -> Result<String> {
    stream.write_all(request).asking("send a callback")?;
    let (mut answer, mut part) = (Vec::new(), [0; 1024]);
    while !answer.ends_with(b"\r\n\r\n") {
        match stream.read(&mut part).asking("read the answer to a callback")? {
            0 => return Err(Error::Unexpected("the receiver hung up".to_owned())),
            count => answer.extend(&part[..count]),
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
