//! Streaming reader for the tools' JSON, an array of ads. However large the output is, it holds no more than one ad,
//! and only the beginning of each value. Anyone who may edit a job's ad may write anything into it, at any length.

use std::mem;

use strum::IntoStaticStr;

/// Maximum bytes kept of one value, as JSON. No path is longer, and no other queried attribute needs more.
const VALUE: usize = 4096;
/// Maximum bytes kept of an attribute's name.
const NAME: usize = 64;
/// Size in bytes that no ad of this operator exceeds, with the queried attributes.
pub(super) const LARGE_AD: usize = 8192;

/// One value of an ad.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scalar {
    Number(i64),
    Flag(bool),
    Text(String),
}

/// Consumer of ads, attribute by attribute.
pub(super) trait AdSink {
    /// Takes an attribute of the current ad. A value that is no scalar, or no JSON, is left out.
    fn attribute(&mut self, name: &str, value: Scalar);
    /// Ends the current ad.
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
    /// In a nested list or ad that is a value, at this depth.
    Nested(usize),
    NestedText(usize),
    /// After the array.
    End,
    /// After something that is not an array of ads.
    Broken,
}

/// Reason why an answer counts as missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
pub(super) enum IncompleteAnswer {
    #[strum(to_string = "it is empty")]
    Empty,
    #[strum(to_string = "it is cut short")]
    CutShort,
    #[strum(to_string = "it is not a list of ads")]
    Broken,
}

/// Reader of one answer.
pub(super) struct AdReader<S> {
    sink: S,
    at: At,
    /// Whether the previous character was a backslash.
    escaped: bool,
    name: Vec<u8>,
    value: Vec<u8>,
    /// Bytes read of the current ad.
    length: usize,
    /// Bytes of all ads beyond their first [`LARGE_AD`].
    excess: usize,
}

impl<S: AdSink> AdReader<S> {
    pub(super) fn new(sink: S) -> Self {
        Self { sink, at: At::Begin, escaped: false, name: Vec::new(), value: Vec::new(), length: 0, excess: 0 }
    }

    /// Reads the next bytes.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.length += 1;
            if self.length > LARGE_AD {
                self.excess += 1;
            }
            self.at = self.next(*byte);
        }
    }

    /// Returns the number of bytes beyond the first [`LARGE_AD`] of each ad. Ads of this operator have none.
    pub(super) const fn excess(&self) -> usize {
        self.excess
    }

    /// Ends the answer. Returns the sink if the answer is complete.
    pub(super) fn end(self) -> Result<S, IncompleteAnswer> {
        match self.at {
            At::End => Ok(self.sink),
            At::Begin => Err(IncompleteAnswer::Empty),
            At::Broken => Err(IncompleteAnswer::Broken),
            _ => Err(IncompleteAnswer::CutShort),
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

    /// Reads a character of a text. Returns the position after it: `after` the text or `within` it.
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

/// Decodes a text, which may be truncated. Ads may hold bytes that are not UTF-8.
fn decoded(json: &[u8]) -> Option<String> {
    // Drops an escape that is cut in two. The longest is a surrogate pair of six characters each.
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
    struct CollectedAds {
        ad: Vec<(String, Scalar)>,
        ads: Vec<Vec<(String, Scalar)>>,
    }

    impl AdSink for CollectedAds {
        fn attribute(&mut self, name: &str, value: Scalar) {
            self.ad.push((name.to_owned(), value));
        }

        fn end(&mut self) {
            self.ads.push(mem::take(&mut self.ad));
        }
    }

    /// Reads the JSON at once, and byte by byte.
    fn read(json: &[u8]) -> Result<Vec<Vec<(String, Scalar)>>, IncompleteAnswer> {
        let (mut whole, mut pieces) = (AdReader::new(CollectedAds::default()), AdReader::new(CollectedAds::default()));
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
    fn ads_are_parsed_as_the_tools_write_them() {
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
    fn invalid_json_value_drops_only_that_attribute() {
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
    fn oversized_value_is_truncated() {
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
    fn oversized_ad_is_not_buffered() {
        let mut reader = AdReader::new(CollectedAds::default());
        for comma in iter::once(b"[").chain(iter::repeat_n(b",", 99)) {
            reader.take(comma);
            reader.take(b"{\"A\":\"");
            reader.take(&[b'x'; LARGE_AD - 20]);
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
    fn truncated_answer_is_an_error() {
        let whole = br#"[{"A":1,"B":"x"},{"A":[1]}]"#;
        assert_eq!(read(whole).unwrap().len(), 2);
        assert_eq!(read(b"").unwrap_err(), IncompleteAnswer::Empty);
        for end in 1..whole.len() {
            assert_eq!(read(&whole[..end]).unwrap_err(), IncompleteAnswer::CutShort, "{end}");
        }
        for bad in [&b"{}"[..], b"[1]", b"[] x", b"[{1}]", b"[{\"A\" 1}]", b"[{\"A\":}]", b"no"] {
            assert_eq!(read(bad).unwrap_err(), IncompleteAnswer::Broken);
        }
    }
}
