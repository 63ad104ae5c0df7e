// What the fuzz target and the test of its corpus share.

use htc_submit::job_token::TokenKeys;
use htc_ledger::JobReport;
use htc_operator::callbacks::event;
use htc_operator::callbacks::report;
use htc_operator::callbacks::report::ReportRefusal;

/// Takes in lines `name: value`, an empty line, and a body, as the receiver does.
pub(crate) fn take(data: &[u8]) -> Result<JobReport, ReportRefusal> {
    let (head, body) = data
        .windows(2)
        .position(|pair| pair == b"\n\n")
        .map_or((data, &b""[..]), |end| (&data[..end], &data[end + 2..]));
    let headers: Vec<(String, &[u8])> = head
        .split(|byte| *byte == b'\n')
        .filter_map(|line| {
            let colon = line.iter().position(|byte| *byte == b':')?;
            let name = String::from_utf8_lossy(&line[..colon]).to_ascii_lowercase();
            Some((name, line[colon + 1..].trim_ascii()))
        })
        .collect();
    let header = |name: &str| headers.iter().find(|(other, _)| other == name).map(|(_, value)| *value);
    let keys = TokenKeys::parse("0123456789abcdef0123456789abcdef").unwrap_or_else(|_| unreachable!("it is long enough"));
    let refusal = match event::parse(header, body) {
        Ok(event) => match report::read(event, header("authorization"), &keys) {
            Ok(callback) => return Ok(callback),
            Err(refusal) => refusal,
        },
        Err(error) => ReportRefusal::from(error),
    };
    assert!((400..500).contains(&refusal.status()), "{refusal:?}");
    assert!(!refusal.to_string().is_empty());
    Err(refusal)
}
