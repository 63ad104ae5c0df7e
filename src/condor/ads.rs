//! The tools' JSON, an array of ads, read as it comes: however much that is, no more than one ad is held, and of each value
//! only its beginning. Whoever may edit a job ad may write anything into it, and as much as he likes.

use std::mem;

use strum::IntoStaticStr;

/// Most bytes that are kept of one value, as JSON. No path is longer, and nothing else that is asked for needs to be.
const VALUE: usize = 4096;
/// Most bytes of an attribute's name.
const NAME: usize = 64;
/// No ad of ours has more bytes, of the attributes that are asked for.
pub(super) const LARGE: usize = 8192;

/// One value of an ad.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scalar {
    Number(i64),
    Flag(bool),
    Text(String),
}

/// What takes in an ad, attribute by attribute.
pub(super) trait AdSink {
    /// An attribute of the ad. A value that is no scalar, or that is not JSON, is left out.
    fn attribute(&mut self, name: &str, value: Scalar);
    /// The ad is complete.
    fn end(&mut self);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Before the array.
    Begin,
    /// In the array, outside all ads.
    Array,
    /// In an ad, before the name of an attribute.
    Ad,
    Name,
    /// Between name and value.
    Colon,
    Value,
    Text,
    Literal,
    /// In a list or an ad that is a value; so deep.
    Nested(usize),
    NestedText(usize),
    /// After the array.
    End,
    /// It is not an array of ads.
    Broken,
}

/// Why an answer counts as none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
pub(super) enum NotComplete {
    #[strum(to_string = "it is empty")]
    Empty,
    #[strum(to_string = "it is cut short")]
    CutShort,
    #[strum(to_string = "it is not a list of ads")]
    Broken,
}

/// Reads one answer.
pub(super) struct AdReader<S> {
    sink: S,
    at: At,
    /// The character before was a backslash.
    escaped: bool,
    name: Vec<u8>,
    value: Vec<u8>,
    /// Bytes of this ad.
    length: usize,
    /// Bytes of all ads beyond their first [`LARGE`].
    excess: usize,
}

impl<S: AdSink> AdReader<S> {
    pub(super) fn new(sink: S) -> Self {
        Self { sink, at: At::Begin, escaped: false, name: Vec::new(), value: Vec::new(), length: 0, excess: 0 }
    }

    /// Takes in what comes next.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.length += 1;
            if self.length > LARGE {
                self.excess += 1;
            }
            self.at = self.next(*byte);
        }
    }

    /// How many bytes have come that no ad of ours has.
    pub(super) const fn excess(&self) -> usize {
        self.excess
    }

    /// There is no more; gives back the sink if the answer is complete.
    pub(super) fn end(self) -> Result<S, NotComplete> {
        match self.at {
            At::End => Ok(self.sink),
            At::Begin => Err(NotComplete::Empty),
            At::Broken => Err(NotComplete::Broken),
            _ => Err(NotComplete::CutShort),
        }
    }

    fn next(&mut self, byte: u8) -> At {
        let blank = byte.is_ascii_whitespace();
        match (self.at, byte) {
            (At::Begin | At::Array | At::Ad | At::Colon | At::Value | At::End, _) if blank => self.at,
            (At::Begin, b'[') | (At::Array, b',') => At::Array,
            (At::Array, b'{') | (At::Ad, b',') | (At::Nested(1), b']' | b'}') => At::Ad,
            (At::Array, b']') => At::End,
            (At::Ad, b'}') => {
                self.sink.end();
                self.length = 0;
                At::Array
            }
            (At::Ad, b'"') => {
                self.name.clear();
                At::Name
            }
            (At::Name, b'"') if !self.escaped => At::Colon,
            (At::Name, _) => {
                self.escaped = byte == b'\\' && !self.escaped;
                keep(&mut self.name, byte, NAME);
                At::Name
            }
            (At::Colon, b':') => {
                self.value.clear();
                At::Value
            }
            (At::Value, b'"') => At::Text,
            (At::Value, b'[' | b'{') => At::Nested(1),
            (At::Value, b',' | b'}' | b']')
            | (At::Begin | At::Array | At::Ad | At::Colon | At::End | At::Broken, _) => At::Broken,
            (At::Value, _) => {
                self.value.push(byte);
                At::Literal
            }
            (At::Text, _) => self.text(byte, At::Ad, At::Text),
            (At::Literal, b',' | b'}') => {
                self.literal();
                self.at = At::Ad;
                self.next(byte)
            }
            (At::Literal, _) => {
                keep(&mut self.value, byte, VALUE);
                At::Literal
            }
            (At::Nested(depth), b'[' | b'{') => At::Nested(depth + 1),
            (At::Nested(depth), b']' | b'}') => At::Nested(depth - 1),
            (At::Nested(depth), b'"') => At::NestedText(depth),
            (At::Nested(depth), _) => At::Nested(depth),
            (At::NestedText(depth), _) => self.text(byte, At::Nested(depth), At::NestedText(depth)),
        }
    }

    /// A character of a text: where that leaves us, after its end or in it.
    fn text(&mut self, byte: u8, after: At, within: At) -> At {
        let ends = byte == b'"' && !self.escaped;
        self.escaped = byte == b'\\' && !self.escaped;
        let is_value = within == At::Text;
        if ends && is_value {
            let text = mem::take(&mut self.value);
            self.tell(decoded(&text).map(Scalar::Text));
            self.value = text;
        } else if is_value {
            keep(&mut self.value, byte, VALUE);
        }
        if ends { after } else { within }
    }

    fn literal(&mut self) {
        let scalar = match self.value.trim_ascii() {
            b"true" => Some(Scalar::Flag(true)),
            b"false" => Some(Scalar::Flag(false)),
            number => std::str::from_utf8(number).ok().and_then(|text| text.parse().ok()).map(Scalar::Number),
        };
        self.tell(scalar);
    }

    fn tell(&mut self, value: Option<Scalar>) {
        if let (Some(value), Ok(name)) = (value, std::str::from_utf8(&self.name)) {
            self.sink.attribute(name, value);
        }
    }
}

fn keep(kept: &mut Vec<u8>, byte: u8, most: usize) {
    if kept.len() < most {
        kept.push(byte);
    }
}

/// A text, of which only the beginning may be there. Ads may hold bytes that are no UTF-8.
fn decoded(json: &[u8]) -> Option<String> {
    // An escape that is cut in two: the longest is a pair of six characters each.
    let end = if json.len() < VALUE {
        json.len()
    } else {
        let last = VALUE - 12;
        json[last..].iter().position(|byte| *byte == b'\\').map_or(VALUE, |at| last + at)
    };
    let text = String::from_utf8_lossy(&json[..end]);
    if text.contains('\\') { serde_json::from_str(&format!("\"{text}\"")).ok() } else { Some(text.into_owned()) }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;

    #[derive(Default)]
    struct Seen {
        ad: Vec<(String, Scalar)>,
        ads: Vec<Vec<(String, Scalar)>>,
    }

    impl AdSink for Seen {
        fn attribute(&mut self, name: &str, value: Scalar) {
            self.ad.push((name.to_owned(), value));
        }

        fn end(&mut self) {
            self.ads.push(mem::take(&mut self.ad));
        }
    }

    /// Read at once, and in pieces of one byte.
    fn read(json: &[u8]) -> Result<Vec<Vec<(String, Scalar)>>, NotComplete> {
        let (mut whole, mut pieces) = (AdReader::new(Seen::default()), AdReader::new(Seen::default()));
        whole.take(json);
        for byte in json {
            pieces.take(&[*byte]);
        }
        let (whole, pieces) = (whole.end().map(|seen| seen.ads), pieces.end().map(|seen| seen.ads));
        assert_eq!(whole, pieces);
        whole
    }

    fn only(json: &str) -> Vec<(String, Scalar)> {
        let mut ads = read(json.as_bytes()).unwrap();
        assert_eq!(ads.len(), 1, "{json}");
        ads.remove(0)
    }

    fn text(name: &str, value: &str) -> (String, Scalar) {
        (name.to_owned(), Scalar::Text(value.to_owned()))
    }

    #[test]
    fn ads_are_read_as_the_tools_write_them() {
        let seen = only(
            "[\n{\n  \"A\": -7,\n \"B\": true, \"C\": \"a \\\"word\\\" \\\\ \\u00e9 é\" , \"D\": null,\"E\":1.5,\n\"F\":false}\n]\n",
        );
        let expected = [
            ("A".to_owned(), Scalar::Number(-7)),
            ("B".to_owned(), Scalar::Flag(true)),
            text("C", "a \"word\" \\ é é"),
            ("F".to_owned(), Scalar::Flag(false)),
        ];
        assert_eq!(seen, expected);
        assert_eq!(read(b"[\n]\n").unwrap(), Vec::<Vec<_>>::new());
        assert_eq!(read(b"[{},\n{ }\n]").unwrap(), vec![vec![], vec![]]);
    }

    #[test]
    fn what_is_no_json_spoils_only_its_own_value() {
        for odd in
            ["INF", "-NAN", "1E+999", "[1, {\"B\": \"}]\\\"\"}, []]", "{ \"B\": 3 }", "\"\\x\"", "99999999999999999999"]
        {
            assert_eq!(
                only(&format!("[{{ \"A\": {odd}, \"B\": 2 }}]")),
                [("B".to_owned(), Scalar::Number(2))],
                "{odd}"
            );
        }
        let not_utf8 = b"[{\"A\": \"a\xff\"}]";
        assert_eq!(read(not_utf8).unwrap(), [[text("A", "a\u{fffd}")]]);
    }

    #[test]
    fn of_what_is_too_long_the_beginning_is_kept() {
        let long = "x".repeat(10_000_000);
        let json = format!("[{{\"A\": \"{long}\", \"B\": \"b\"}}]");
        assert_eq!(only(&json), [text("A", &long[..VALUE]), text("B", "b")]);
        for escape in ["\\\"", "\\u00e9", "\\ud83d\\ude00"] {
            for shift in 0..13 {
                let json = format!("[{{\"A\": \"{}{}\", \"B\": \"b\"}}]", &long[..shift], escape.repeat(1000));
                let seen = only(&json);
                assert_eq!(seen.last(), Some(&text("B", "b")), "{escape} {shift}");
            }
        }
        let nested = format!("[{{\"A\": [{}], \"B\": \"b\"}}]", vec!["\"x\""; 1_000_000].join(","));
        assert_eq!(only(&nested), [text("B", "b")]);
        let digits = format!("[{{\"A\": {}, \"{long}\": 3, \"B\": \"b\"}}]", "9".repeat(1_000_000));
        assert_eq!(only(&digits).last(), Some(&text("B", "b")));
    }

    #[test]
    fn nothing_of_it_is_held() {
        let mut reader = AdReader::new(Seen::default());
        for comma in iter::once(b"[").chain(iter::repeat_n(b",", 99)) {
            reader.take(comma);
            reader.take(b"{\"A\":\"");
            reader.take(&[b'x'; LARGE - 20]);
            reader.take(b"\"}");
        }
        assert_eq!(reader.excess(), 0, "many ads are not a large one");
        reader.take(b",{\"A\": \"");
        for _ in 0..1000 {
            reader.take(&[b'x'; 10_000]);
        }
        assert!(reader.excess() > 9_900_000, "{}", reader.excess());
        assert!(reader.value.capacity() <= 2 * VALUE, "{}", reader.value.capacity());
    }

    #[test]
    fn an_answer_cut_short_is_none() {
        let whole = br#"[{"A":1,"B":"x"},{"A":[1]}]"#;
        assert_eq!(read(whole).unwrap().len(), 2);
        assert_eq!(read(b"").unwrap_err(), NotComplete::Empty);
        for end in 1..whole.len() {
            assert_eq!(read(&whole[..end]).unwrap_err(), NotComplete::CutShort, "{end}");
        }
        for bad in [&b"{}"[..], b"[1]", b"[] x", b"[{1}]", b"[{\"A\" 1}]", b"[{\"A\":}]", b"no"] {
            assert_eq!(read(bad).unwrap_err(), NotComplete::Broken);
        }
    }
}
