//! Draws rows as an SVG that a browser opens at once, however many jobs there are.

use std::fmt::Write as _;

use jiff::Timestamp;

use super::timeline::{Activity, HoldSpan, JobResult, Shade, TimelineRow};

/// Maximum number of jobs with a row each. If there are more, each row shows several.
const MOST_ROWS: usize = 250;
/// Approximate number of rows then.
const GROUPS: usize = 100;
/// Number of steps in which a row of several jobs is drawn.
const COLUMNS: i64 = 80;
/// Maximum number of jobs that did not succeed in the title of such a row.
const NAMED: usize = 10;

const WIDTH: i64 = 1000;
const LEFT: i64 = 96;
const RIGHT: i64 = 110;
const TOP: i64 = 76;
const ROW: i64 = 15;
const GROUP: i64 = 22;
/// Height of one job's bar.
const BAR: i64 = 11;

const STYLE: &str = "text{font:11px system-ui,sans-serif;fill:#1f2328}.t{font-size:13px;font-weight:600}.l{text-anchor:end}\
.b{fill:#fff}.o{fill-opacity:0}.a{stroke:#d1d9e0}.w{fill:#c8ced5}.i{fill:#e3b341}.r{fill:#4493f8}.h{fill:#a475f9}.s{fill:#2da44e}\
.f{fill:#d1242f}text.f{font-weight:600}g:hover>.o{fill-opacity:.12}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.b{fill:#0d1117}.a{stroke:#30363d}.w{fill:#565d66}.f{fill:#ff7b72}.s{fill:#3fb950}}";

/// A picture of all rows.
pub(super) struct Picture {
    heading: String,
    rows: Vec<TimelineRow>,
    holds: Vec<HoldSpan>,
    notes: Vec<String>,
    from: i64,
    to: i64,
}

impl Picture {
    /// `holds`: when some of the jobs were held; `note`: a remark about the rows.
    pub(super) fn new(heading: &str, rows: Vec<TimelineRow>, holds: Vec<HoldSpan>, note: Option<&str>) -> Self {
        let bounds = || rows.iter().filter_map(TimelineRow::bounds);
        let from = bounds().map(|(from, _)| from).min().unwrap_or_default();
        let to = bounds().map(|(_, to)| to).max().unwrap_or_default().max(from + 1);
        let mut notes: Vec<String> = note.map(str::to_owned).into_iter().collect();
        if rows.len() > MOST_ROWS {
            notes.push(format!(
                "{} jobs: each row shows {} of them, and the share that is in each state.",
                rows.len(),
                size(rows.len())
            ));
        }
        if rows.iter().any(|row| row.restarted) {
            notes.push(
                "Of jobs that were started more than once the last run is shown; earlier ones are shown as idle."
                    .to_owned(),
            );
        }
        if rows.iter().any(|row| row.held_since_unknown) {
            notes.push(
                "Since when some jobs are held is not known: their last start, or else their submission, is shown."
                    .to_owned(),
            );
        }
        if !holds.is_empty() {
            notes.push("Which job was held is known only while it is: the first row shows when any was.".to_owned());
        }
        Self { heading: heading.to_owned(), rows, holds, notes, from, to }
    }

    /// Returns the whole file.
    pub(super) fn svg(&self) -> String {
        let grouped = self.rows.len() > MOST_ROWS;
        let (step, lines) =
            if grouped { (GROUP, self.rows.len().div_ceil(size(self.rows.len()))) } else { (ROW, self.rows.len()) };
        let top = TOP + 16 * whole(self.notes.len());
        let first = top + if self.holds.is_empty() { 0 } else { ROW };
        let height = first + step * whole(lines) + 12;
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
             role=\"group\" aria-labelledby=\"title about\"><title id=\"title\">{}</title><desc id=\"about\">{}</desc>\
             <style>{STYLE}</style><rect class=\"b\" width=\"{WIDTH}\" height=\"{height}\"/>\n",
            escape(&self.heading),
            escape(&self.about())
        );
        let _ = writeln!(text, "<text class=\"t\" x=\"12\" y=\"22\">{}</text>", escape(&self.heading));
        legend(&mut text);
        for (at, note) in self.notes.iter().enumerate() {
            let _ = writeln!(text, "<text x=\"12\" y=\"{}\">{}</text>", 58 + 16 * whole(at), escape(note));
        }
        self.axis(&mut text, top, height);
        if !self.holds.is_empty() {
            self.held(&mut text, top);
        }
        for line in 0..lines {
            let y = first + step * whole(line);
            if grouped { self.group(&mut text, line, y) } else { self.row(&mut text, &self.rows[line], y) }
        }
        text + "</svg>\n"
    }

    /// Returns a description for users who do not see the picture.
    fn about(&self) -> String {
        let count = |result| self.rows.iter().filter(|row| row.result == result).count();
        let time = |second| shown(second, "%Y-%m-%d %H:%M:%S UTC");
        let mut text = format!(
            "{} jobs from {} to {}: {} succeeded, {} did not, {} have not ended.",
            self.rows.len(),
            time(self.from),
            time(self.to),
            count(JobResult::Succeeded),
            count(JobResult::Failed),
            count(JobResult::Open)
        );
        let named = named(&self.rows);
        if !named.is_empty() {
            let _ = write!(text, " Not succeeded: {named}.");
        }
        self.notes.iter().fold(text, |text, note| text + " " + note)
    }

    fn x(&self, second: i64) -> i64 {
        LEFT + (WIDTH - LEFT - RIGHT) * (second - self.from) / (self.to - self.from)
    }

    fn axis(&self, text: &mut String, top: i64, height: i64) {
        let step = tick(self.to - self.from);
        let format = if step >= 86400 {
            "%Y-%m-%d"
        } else if step >= 60 {
            "%H:%M"
        } else {
            "%H:%M:%S"
        };
        let first = self.from.div_euclid(step) * step + step;
        let mut ticks: Vec<i64> = (0..=(self.to - first).div_euclid(step)).map(|nth| first + nth * step).collect();
        if self.x(first) - LEFT > 70 {
            ticks.insert(0, self.from);
        }
        for at in ticks {
            let (x, y) = (self.x(at), top - 6);
            let _ = writeln!(
                text,
                "<path class=\"a\" d=\"M{x} {y}V{}\"/><text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                height - 8,
                y - 3,
                shown(at, format)
            );
        }
        let _ = writeln!(text, "<text class=\"l\" x=\"{}\" y=\"{}\">UTC</text>", LEFT - 34, top - 9);
    }

    /// Draws when any of the jobs was held.
    fn held(&self, text: &mut String, y: i64) {
        let times = self.holds.iter().map(|hold| {
            let time = |second| shown(second, "%Y-%m-%d %H:%M:%S");
            format!("{} to {}: {}", time(hold.from), time(hold.to), hold.message)
        });
        open(text, &format!("held: {}", times.collect::<Vec<_>>().join("; ")), y, ROW);
        let _ = write!(text, "<text class=\"l\" x=\"{}\" y=\"{}\">some held</text>", LEFT - 8, y + 11);
        for hold in &self.holds {
            let (x, end) = (self.x(hold.from.max(self.from)), self.x(hold.to.clamp(self.from, self.to)));
            let _ = write!(text, "<path class=\"h\" d=\"M{x} {}h{}v{BAR}H{x}z\"/>", y + 2, (end - x).max(1));
        }
        text.push_str("</g>\n");
    }

    fn row(&self, text: &mut String, row: &TimelineRow, y: i64) {
        let label = row.index.map_or_else(|| "all jobs".to_owned(), |index| index.to_string());
        open(text, &row.sentence(), y, ROW);
        let _ = write!(text, "<text class=\"l\" x=\"{}\" y=\"{}\">{label}</text>", LEFT - 8, y + 11);
        let mut last = LEFT;
        for span in &row.spans {
            let (x, end) = (self.x(span.from), self.x(span.to).max(self.x(span.from) + 1));
            let class = class(Shade::Doing(span.doing));
            let _ = write!(text, "<path class=\"{class}\" d=\"M{x} {}h{}v{BAR}H{x}z\"/>", y + 2, end - x);
            last = end;
        }
        let (mark, class) = match row.result {
            JobResult::Open => ("", ""),
            JobResult::Succeeded => ("✓ ", " class=\"s\""),
            JobResult::Failed => ("✗ ", " class=\"f\""),
        };
        if row.result != JobResult::Open {
            let _ = write!(text, "<path{class} d=\"M{last} {}h4v{BAR}h-4z\"/>", y + 2);
        }
        let class = if row.result == JobResult::Failed { class } else { "" };
        let _ =
            writeln!(text, "<text{class} x=\"{}\" y=\"{}\">{mark}{}</text></g>", last + 8, y + 11, escape(&row.end));
    }

    /// Draws several jobs in one row: stacked, with the share of each state at each step.
    fn group(&self, text: &mut String, nth: usize, y: i64) {
        let size = size(self.rows.len());
        let rows = &self.rows[nth * size..self.rows.len().min((nth + 1) * size)];
        let index = |row: Option<&TimelineRow>| row.and_then(|row| row.index).unwrap_or_default();
        let (first, last) = (index(rows.first()), index(rows.last()));
        let failed = rows.iter().filter(|row| row.result == JobResult::Failed).count();
        let succeeded = rows.iter().filter(|row| row.result == JobResult::Succeeded).count();
        let open = rows.len() - failed - succeeded;
        let mut about =
            format!("jobs {first} to {last}: {succeeded} succeeded, {failed} did not, {open} have not ended");
        let named = named(rows);
        if !named.is_empty() {
            let _ = write!(about, "; {named}");
        }
        self::open(text, &about, y, GROUP);
        let _ = write!(text, "<text class=\"l\" x=\"{}\" y=\"{}\">{first}–{last}</text>", LEFT - 8, y + 14);
        let shades =
            [Shade::Failed, Shade::Succeeded].into_iter().chain(Activity::ALL.into_iter().rev().map(Shade::Doing));
        let shades: Vec<Shade> = shades.collect();
        let columns: Vec<Vec<i64>> = (0..COLUMNS).map(|column| self.stack(rows, &shades, column)).collect();
        for (at, shade) in shades.iter().enumerate() {
            let path = outline(&columns, at, y + 2);
            if !path.is_empty() {
                let _ = write!(text, "<path class=\"{}\" d=\"{path}\"/>", class(*shade));
            }
        }
        let class = if failed > 0 { " class=\"f\"" } else { "" };
        let end = match (failed, open) {
            (0, 0) => "✓ succeeded".to_owned(),
            (0, open) => format!("{open} open"),
            (failed, _) => format!("✗ {failed} failed"),
        };
        let _ = writeln!(text, "<text{class} x=\"{}\" y=\"{}\">{end}</text></g>", WIDTH - RIGHT + 8, y + 14);
    }

    /// Returns the heights at which the shades of a column end, from the bottom up, in a bar of `GROUP - 4`.
    fn stack(&self, rows: &[TimelineRow], shades: &[Shade], column: i64) -> Vec<i64> {
        // The last column shows the results, the others the state in the middle of their time.
        let moment = if column + 1 == COLUMNS {
            self.to
        } else {
            self.from + (self.to - self.from) * (2 * column + 1) / (2 * COLUMNS)
        };
        let mut counts = vec![0; shades.len()];
        for shade in rows.iter().filter_map(|row| row.at(moment).or_else(|| row.at(moment - 1))) {
            if let Some(at) = shades.iter().position(|other| *other == shade) {
                counts[at] += 1;
            }
        }
        let mut sum = 0;
        counts
            .into_iter()
            .map(|count| {
                sum += count;
                let all = whole(rows.len()).max(1);
                // Rounded up, so that one job of many is visible.
                ((GROUP - 4) * sum + all - 1) / all
            })
            .collect()
    }
}

/// Returns how many jobs a row shows.
fn size(jobs: usize) -> usize {
    jobs.div_ceil(GROUPS)
}

/// Returns the outline of one shade over all columns; columns of the same height are joined.
fn outline(columns: &[Vec<i64>], shade: usize, y: i64) -> String {
    let all = GROUP - 4;
    let edge = |column: i64| LEFT + (WIDTH - LEFT - RIGHT) * column / COLUMNS;
    let part = |column: &Vec<i64>| (shade.checked_sub(1).map_or(0, |below| column[below]), column[shade]);
    let (mut path, mut at) = (String::new(), 0);
    while at < columns.len() {
        let (low, high) = part(&columns[at]);
        let same = columns[at..].iter().take_while(|column| part(column) == (low, high)).count();
        if high > low {
            let (x, end) = (edge(whole(at)), edge(whole(at + same)));
            let _ = write!(path, "M{x} {}H{end}v{}H{x}z", y + all - high, high - low);
        }
        at += same;
    }
    path
}

/// Returns the jobs that did not succeed, and how they ended: `3 (exit code 7), 17 (signal 9)`.
fn named(rows: &[TimelineRow]) -> String {
    let mut failed =
        rows.iter().filter(|row| row.result == JobResult::Failed).filter_map(|row| Some((row.index?, &row.end)));
    let first: Vec<String> = failed.by_ref().take(NAMED).map(|(index, end)| format!("{index} ({end})")).collect();
    let more = failed.count();
    let text = first.join(", ");
    if more > 0 { format!("{text} and {more} more") } else { text }
}

fn open(text: &mut String, title: &str, y: i64, height: i64) {
    let _ = write!(
        text,
        "<g role=\"img\"><title>{}</title><rect class=\"o\" y=\"{y}\" width=\"{WIDTH}\" height=\"{height}\"/>",
        escape(title)
    );
}

fn legend(text: &mut String) {
    let shades = Activity::ALL.map(|doing| (Shade::Doing(doing), doing.word()));
    let shades =
        shades.into_iter().chain([(Shade::Succeeded, "succeeded"), (Shade::Failed, "failed, removed or lost")]);
    for (at, (shade, word)) in shades.enumerate() {
        let x = 12 + 84 * whole(at);
        let _ = write!(text, "<path class=\"{}\" d=\"M{x} 32h{BAR}v{BAR}h-{BAR}z\"/>", class(shade));
        let _ = writeln!(text, "<text x=\"{}\" y=\"42\">{word}</text>", x + 16);
    }
}

const fn class(shade: Shade) -> &'static str {
    match shade {
        Shade::Doing(Activity::Waiting) => "w",
        Shade::Doing(Activity::Idle) => "i",
        Shade::Doing(Activity::Running) => "r",
        Shade::Doing(Activity::Held) => "h",
        Shade::Succeeded => "s",
        Shade::Failed => "f",
    }
}

/// Returns the seconds between two marks of the axis: eight marks at most.
fn tick(span: i64) -> i64 {
    const STEPS: [i64; 19] =
        [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 172_800];
    let longest = || (span / 8 / 86_400 + 1) * 86_400;
    STEPS.into_iter().find(|step| span / step <= 8).unwrap_or_else(longest)
}

fn shown(second: i64, format: &str) -> String {
    Timestamp::from_second(second).map(|time| time.strftime(format).to_string()).unwrap_or_default()
}

fn whole(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Escapes a text for XML, which has no control characters at all.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::super::timeline::Span;
    use super::*;

    fn job(index: u64, result: JobResult, end: &str) -> TimelineRow {
        let from = 1_000_000;
        let start = from + 10 + i64::try_from(index % 50).unwrap();
        let span = |doing, from, to| Span { doing, from, to };
        let spans = vec![
            span(Activity::Waiting, from, from + 10),
            span(Activity::Idle, from + 10, start),
            span(Activity::Running, start, start + 60),
        ];
        TimelineRow {
            index: Some(index),
            spans,
            result,
            end: end.to_owned(),
            more: String::new(),
            restarted: false,
            held_since_unknown: false,
        }
    }

    fn jobs(count: u64) -> Vec<TimelineRow> {
        let job = |index: u64| match index % 100 {
            3 => job(index, JobResult::Failed, "exit code 7"),
            5 => job(index, JobResult::Open, "running"),
            _ => job(index, JobResult::Succeeded, "succeeded"),
        };
        (0..count).map(job).collect()
    }

    /// Checks that the text is XML. Returns the texts of its elements of this name.
    fn texts(svg: &str, name: &str) -> Vec<String> {
        let document = roxmltree::Document::parse(svg).unwrap_or_else(|error| panic!("{error}: {svg}"));
        let nodes = document.descendants().filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", name)));
        nodes.filter_map(|node| node.text()).map(str::to_owned).collect()
    }

    #[test]
    fn each_job_of_a_small_htcjob_has_a_row() {
        let svg = Picture::new("HTCJob team/sums: Running", jobs(10), Vec::new(), None).svg();
        let titles = texts(&svg, "title");
        assert_eq!(titles.len(), 11);
        assert_eq!(titles[0], "HTCJob team/sums: Running");
        assert_eq!(titles[4], "job 3: exit code 7; waiting 10s, idle 3s, running 60s");
        assert!(texts(&svg, "text").contains(&"✗ exit code 7".to_owned()), "{svg}");
        let about = &texts(&svg, "desc")[0];
        assert!(
            about.contains(": 8 succeeded, 1 did not, 1 have not ended. Not succeeded: 3 (exit code 7)."),
            "{about}"
        );
        assert!(texts(&svg, "text").contains(&"13:47:00".to_owned()), "{svg}");
        assert!(svg.contains("prefers-color-scheme:dark"));
    }

    #[test]
    fn hold_spans_have_a_row_of_their_own() {
        for count in [10, 1000] {
            let rows = jobs(count);
            let lines = texts(&Picture::new("sums", rows.clone(), Vec::new(), None).svg(), "title").len();
            let hold =
                HoldSpan { from: 1_000_020, to: 1_000_030, message: "1 of 10 jobs held; 5.0: <disk>".to_owned() };
            let svg = Picture::new("sums", rows, vec![hold], None).svg();
            let titles = texts(&svg, "title");
            assert_eq!(titles.len(), lines + 1);
            let title = "held: 1970-01-12 13:47:00 to 1970-01-12 13:47:10: 1 of 10 jobs held; 5.0: <disk>";
            assert_eq!(titles[1], title);
            assert!(texts(&svg, "text").contains(&"some held".to_owned()));
        }
    }

    #[test]
    fn many_jobs_share_rows_and_the_caption_notes_it() {
        for count in [251, 10_000, 100_000] {
            let svg = Picture::new("many", jobs(count), Vec::new(), None).svg();
            assert!(svg.len() < 1_000_000, "{count} jobs take {} bytes", svg.len());
            let rows = texts(&svg, "title").len() - 1;
            assert!((80..=GROUPS).contains(&rows), "{count} jobs have {rows} rows");
            assert!(texts(&svg, "text").iter().any(|text| text.starts_with(&format!("{count} jobs: each row shows "))));
        }
        let svg = Picture::new("many", jobs(10_000), Vec::new(), None).svg();
        let title = &texts(&svg, "title")[1];
        assert_eq!(title, "jobs 0 to 99: 98 succeeded, 1 did not, 1 have not ended; 3 (exit code 7)");
        assert!(texts(&svg, "text").contains(&"✗ 1 failed".to_owned()));
    }

    #[test]
    fn height_of_a_share_is_proportional() {
        let picture = Picture::new("many", jobs(1000), Vec::new(), None);
        let shades = [Shade::Failed, Shade::Succeeded, Shade::Doing(Activity::Running)];
        let rows = &picture.rows[..10];
        assert_eq!(picture.stack(rows, &shades, 0), [0, 0, 0], "all wait");
        assert_eq!(picture.stack(rows, &shades, COLUMNS - 1)[1], 17, "nine of ten have ended, the tenth has not");
        assert_eq!(outline(&[vec![0, 18], vec![0, 18], vec![9, 18]], 1, 0), "M96 0H115v18H96zM115 0H125v9H115z");
    }

    #[test]
    fn user_text_is_escaped() {
        let mut row = job(0, JobResult::Failed, "<script>alert(1)</script>");
        row.more = "a\u{1b}[2J & \"b\"\u{0} <!-- ]]>".to_owned();
        let svg = Picture::new("</svg><b>", vec![row], Vec::new(), Some("see <docs> & ask")).svg();
        let titles = texts(&svg, "title");
        assert_eq!(titles[0], "</svg><b>");
        assert!(titles[1].ends_with("a [2J & \"b\"  <!-- ]]>"), "{titles:?}");
        assert!(!svg.contains("<script"), "{svg}");
        assert!(texts(&svg, "text").contains(&"see <docs> & ask".to_owned()));
    }

    #[test]
    fn empty_timeline_is_drawn() {
        let mut none = job(0, JobResult::Open, "waiting");
        none.spans.clear();
        for rows in [Vec::new(), vec![none]] {
            texts(&Picture::new("none", rows, Vec::new(), None).svg(), "title");
        }
        assert_eq!(
            [1, 9, 100, 3600, 86_400, 864_000, 40_000_000].map(tick),
            [1, 2, 15, 600, 14_400, 172_800, 5_011_200]
        );
    }
}
