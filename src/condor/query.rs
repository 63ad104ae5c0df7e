//! What HTCondor has of our jobs: `condor_q` and `condor_history`.

use std::collections::{BTreeSet, HashMap};

use serde_json::{Map, Value};

use super::schedd::{Schedd, quoted, unknown};
use super::tools::{Call, Output, ToolError};
use crate::machine::facts::{Ad, Exit, Hold, JobStatus, Reach, Unknown, Why, Witness};
use crate::machine::{Attempt, ClusterId, Index, JobId, SchedDate, Uid};

/// The attributes that are asked for.
const ATTRIBUTES: &str = "ClusterId,ProcId,HTCJobUID,HTCJobAttempt,HTCJobIndex,HTCNotAfter,HTCOperator,JobStatus,HoldReasonCode,\
HoldReasonSubCode,HoldReason,StageInFinish,StageOutFinish,ExitCode,ExitBySignal,ExitSignal,CompletionDate,JobStartDate,RemoveReason,\
GlobalJobId,User";
/// A remote condor_history reads at most `HISTORY_HELPER_MAX_HISTORY` ads (50,000 in 23.9) and then ends with rc 0, unless
/// it is told a number.
const SCAN_ALL: [&str; 2] = ["-scanlimit", "2000000000"];
/// Uids in one constraint: 3,300 fit into one argument of 128 KiB.
const UIDS_PER_CALL: usize = 2000;
/// A date is taken for earlier only if it is so by this many seconds.
const DATE_MARGIN: i64 = 60;

/// The ads of many objects.
pub type Ads = HashMap<Uid, Vec<Ad>>;

/// A complete answer of history.
#[derive(Debug, Default)]
pub struct HistoryAnswer {
    /// The ads of the objects asked for.
    pub ads: Ads,
    /// `GlobalJobId`s that were asked for as witnesses and are still there.
    pub witnesses: BTreeSet<String>,
}

impl Schedd {
    /// All jobs of this operator that are in the queue.
    pub async fn queue(&self) -> Result<Ads, Unknown> {
        const TOOL: &str = "condor_q";
        let constraint = self.ours().await?;
        let arguments =
            ["-allusers", "-name", self.name.as_str(), "-json", "-attributes", ATTRIBUTES, "-constraint", &constraint];
        let output = self.answer(TOOL, self.tools.run(TOOL, &arguments).await)?;
        // No job at all is zero bytes.
        let rows = if output.stdout.is_empty() { Vec::new() } else { rows(TOOL, &output.stdout)? };
        let mut ads = Ads::new();
        for row in &rows {
            collect(&mut ads, row)?;
        }
        for list in ads.values_mut() {
            list.sort_by_key(|ad| ad.id);
        }
        Ok(ads)
    }

    /// What history has of these objects, and which of the witnesses it still has.
    pub async fn history(&self, uids: &[Uid], witnesses: &BTreeSet<String>) -> Result<HistoryAnswer, Unknown> {
        const TOOL: &str = "condor_history";
        let mut answer = HistoryAnswer::default();
        let witness_list: Vec<String> = witnesses.iter().map(|id| quoted(id)).collect();
        for chunk in uids.chunks(UIDS_PER_CALL) {
            let ours = self.jobs_of(chunk).await?;
            let constraint = format!("({ours}) || member(GlobalJobId, {{{}}})", witness_list.join(","));
            let output = self.answer(TOOL, self.ask_history(&["-constraint", &constraint]).await)?;
            for row in &rows(TOOL, &output.stdout)? {
                if let Some(id) = text(row, "GlobalJobId").filter(|id| witnesses.contains(*id)) {
                    answer.witnesses.insert(id.to_owned());
                }
                // A witness may be anybody's, and say anything.
                let user = text(row, "User").is_some_and(|user| self.is_us(user));
                if user && text(row, "HTCOperator") == Some(&self.operator) {
                    collect(&mut answer.ads, row)?;
                }
            }
        }
        Ok(answer)
    }

    /// Whether history still has a job that left the queue before `date`: only for removed jobs does the ad say when
    /// they left.
    pub async fn history_reaches(&self, date: SchedDate) -> Result<bool, Unknown> {
        const TOOL: &str = "condor_history";
        let before = date.0 - DATE_MARGIN;
        let constraint =
            format!("JobStatus == 3 && EnteredCurrentStatus < {before} && (JobFinishedHookDone ?: 0) < {before}");
        let output =
            self.answer(TOOL, self.ask_history(&["-forwards", "-limit", "1", "-constraint", &constraint]).await)?;
        Ok(!rows(TOOL, &output.stdout)?.is_empty())
    }

    /// The newest ad of history: as long as it is there, so is everything that comes after it.
    pub async fn newest_in_history(&self) -> Result<Witness, Unknown> {
        const TOOL: &str = "condor_history";
        let output = self.answer(TOOL, self.ask_history(&["-limit", "1"]).await)?;
        match rows(TOOL, &output.stdout)?.first() {
            None => Ok(Witness::Empty),
            Some(row) => match text(row, "GlobalJobId") {
                Some(id) => Ok(Witness::Newest(id.to_owned())),
                None => Err(unknown(Why::Incomplete, format!("{TOOL} shows a job without a GlobalJobId"))),
            },
        }
    }

    async fn ask_history(&self, more: &[&str]) -> Result<Output, ToolError> {
        let mut arguments = vec!["-name", self.name.as_str(), "-json", "-attributes", ATTRIBUTES];
        arguments.extend(SCAN_ALL);
        arguments.extend(more);
        let call = Call {
            tool: "condor_history",
            arguments,
            input: Vec::new(),
            limit: self.tools.history_limit,
            outlives_us: false,
        };
        self.tools.call(call).await
    }
}

/// How far back an answer was found to reach.
#[must_use]
pub fn reach(asked: &Reach, found: &BTreeSet<String>, date_reached: Option<SchedDate>) -> Reach {
    Reach {
        witnesses: asked.witnesses.intersection(found).cloned().collect(),
        date: asked.date.filter(|date| date_reached.is_some_and(|reached| reached <= *date)),
    }
}

type Row = Map<String, Value>;

/// Ads may hold bytes that are no UTF-8.
fn rows(tool: &str, stdout: &[u8]) -> Result<Vec<Row>, Unknown> {
    serde_json::from_str(&String::from_utf8_lossy(stdout))
        .map_err(|error| unknown(Why::Incomplete, format!("the answer of {tool} is not complete: {error}")))
}

fn text<'a>(row: &'a Row, name: &str) -> Option<&'a str> {
    row.get(name).and_then(Value::as_str)
}

fn number(row: &Row, name: &str) -> Option<i64> {
    row.get(name).and_then(Value::as_i64)
}

/// Adds one of our ads. They are written by us alone (`User` stands in the constraint): one that cannot be read means
/// that the answer is broken.
fn collect(ads: &mut Ads, row: &Row) -> Result<(), Unknown> {
    let broken = || {
        let id = format!("{}.{}", number(row, "ClusterId").unwrap_or(-1), number(row, "ProcId").unwrap_or(-1));
        unknown(Why::Incomplete, format!("the ad of job {id} lacks attributes that every job of htc-operator has"))
    };
    let uid = text(row, "HTCJobUID").ok_or_else(broken)?;
    let ad = ad(row).ok_or_else(broken)?;
    ads.entry(Uid::from(uid)).or_default().push(ad);
    Ok(())
}

fn ad(row: &Row) -> Option<Ad> {
    let small = |name| number(row, name).and_then(|number| u32::try_from(number).ok());
    let code = |name| number(row, name).and_then(|number| i32::try_from(number).ok());
    let by_signal = row.get("ExitBySignal").and_then(Value::as_bool).unwrap_or(false);
    let exit = if by_signal { code("ExitSignal").map(Exit::Signal) } else { code("ExitCode").map(Exit::Code) };
    let date = |name| number(row, name).filter(|date| *date > 0).map(SchedDate);
    Some(Ad {
        id: JobId { cluster: ClusterId(u64::try_from(number(row, "ClusterId")?).ok()?), proc: small("ProcId")? },
        attempt: Attempt(small("HTCJobAttempt")?),
        index: Index(small("HTCJobIndex")?),
        not_after: number(row, "HTCNotAfter").map(SchedDate),
        status: JobStatus::from_code(number(row, "JobStatus")?)?,
        hold: Hold {
            code: number(row, "HoldReasonCode").unwrap_or_default(),
            subcode: number(row, "HoldReasonSubCode").unwrap_or_default(),
            reason: text(row, "HoldReason").unwrap_or_default().to_owned(),
        },
        staged_in: date("StageInFinish"),
        staged_out: date("StageOutFinish"),
        exit,
        completed: date("CompletionDate").is_some(),
        started: date("JobStartDate").is_some(),
        remove_reason: text(row, "RemoveReason").unwrap_or_default().to_owned(),
    })
}
