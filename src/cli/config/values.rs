//! How settings are written.

use std::time::Duration;

use htc_submit::payload::Image;
use htc_submit::pod_metadata::{MetadataKey, MetadataKeyError};

use super::error::ValueError;

pub(super) fn parse_image(text: &str) -> Result<(String, String), ValueError> {
    let pair = text.split_once('=').filter(|(name, path)| !name.is_empty() && path.starts_with('/'));
    let (name, path) = pair.ok_or(ValueError::ImagePair)?;
    Image::of_the_site(path)?;
    Ok((name.to_owned(), path.to_owned()))
}

pub(super) fn parse_duration(text: &str) -> Result<Duration, ValueError> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let milliseconds = match unit {
        "ms" => 1,
        "s" | "" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(ValueError::Duration),
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(milliseconds))
        .map(Duration::from_millis)
        .ok_or(ValueError::Duration)
}

pub(super) fn parse_realm(text: &str) -> Result<String, ValueError> {
    let plain = !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic() && !"@/*,".contains(c));
    if plain { Ok(text.to_owned()) } else { Err(ValueError::Realm) }
}

/// Parses a key. An empty text is none.
pub(super) fn parse_metadata_key(text: &str) -> Result<Option<MetadataKey>, MetadataKeyError> {
    if text.is_empty() { Ok(None) } else { text.parse().map(Some) }
}

pub(super) fn parse_keep(text: &str) -> Result<Duration, ValueError> {
    if text == "forever" { Ok(Duration::MAX) } else { parse_duration(text) }
}

pub(super) fn parse_size(text: &str) -> Result<u64, ValueError> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let bytes = match unit {
        "" => Some(1),
        "K" | "Ki" => Some(1 << 10),
        "M" | "Mi" => Some(1 << 20),
        "G" | "Gi" => Some(1 << 30),
        "T" | "Ti" => Some(1_u64 << 40),
        _ => None,
    };
    number.parse::<u64>().ok().zip(bytes).and_then(|(number, bytes)| number.checked_mul(bytes)).ok_or(ValueError::Size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_has_a_unit() {
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("20s"), Ok(Duration::from_secs(20)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("30d"), Ok(Duration::from_secs(30 * 86_400)));
        assert_eq!(parse_keep("forever"), Ok(Duration::MAX));
        for bad in ["", "s", "1.5s", "-1s", "1w", "forever", "99999999999999999999s"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn realm_is_a_name() {
        assert_eq!(parse_realm("CERN.CH"), Ok("CERN.CH".to_owned()));
        for bad in ["", "*", "a@CERN.CH", "CERN CH"] {
            assert!(parse_realm(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn size_has_a_unit_of_1024() {
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_size("2K"), Ok(2048));
        assert_eq!((parse_size("1G"), parse_size("1Gi")), (Ok(1 << 30), Ok(1 << 30)));
        for bad in ["", "G", "1.5G", "-1", "1g", "1 G", "1GB", "1gi", "99999999T", "forever"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn image_is_a_pair_of_name_and_path() {
        assert_eq!(parse_image("centos=/images/c"), Ok(("centos".to_owned(), "/images/c".to_owned())));
        for bad in ["centos", "=/x", "centos=relative", "centos=/my images"] {
            assert!(parse_image(bad).is_err(), "{bad}");
        }
    }
}
