//! How settings are written.

use std::time::Duration;

use crate::condor::payload::Image;

pub(super) fn parse_image(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(name, path)| !name.is_empty() && path.starts_with('/'));
    let (name, path) = pair.ok_or_else(|| "write NAME=/absolute/path".to_owned())?;
    Image::of_the_site(path).map_err(|error| error.to_string())?;
    Ok((name.to_owned(), path.to_owned()))
}

pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let milliseconds = match unit {
        "ms" => 1,
        "s" | "" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err("write a whole number with ms, s, m, h or d".to_owned()),
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(milliseconds))
        .map(Duration::from_millis)
        .ok_or_else(|| "write a whole number with ms, s, m, h or d".to_owned())
}

pub(super) fn parse_realm(text: &str) -> Result<String, String> {
    let plain = !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic() && !"@/*,".contains(c));
    if plain { Ok(text.to_owned()) } else { Err("write the name of a Kerberos realm, such as EXAMPLE.ORG".to_owned()) }
}

pub(super) fn parse_keep(text: &str) -> Result<Duration, String> {
    if text == "forever" { Ok(Duration::MAX) } else { parse_duration(text) }
}

pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let bytes = match unit {
        "" => Some(1),
        "K" => Some(1 << 10),
        "M" => Some(1 << 20),
        "G" => Some(1 << 30),
        "T" => Some(1_u64 << 40),
        _ => None,
    };
    number
        .parse::<u64>()
        .ok()
        .zip(bytes)
        .and_then(|(number, bytes)| number.checked_mul(bytes))
        .ok_or_else(|| "write a whole number of bytes, or one with K, M, G or T".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
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
    fn realms_are_names() {
        assert_eq!(parse_realm("CERN.CH"), Ok("CERN.CH".to_owned()));
        for bad in ["", "*", "a@CERN.CH", "CERN CH"] {
            assert!(parse_realm(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_have_units_of_1024() {
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_size("2K"), Ok(2048));
        assert_eq!(parse_size("1G"), Ok(1 << 30));
        for bad in ["", "G", "1.5G", "-1", "1g", "1 G", "1GB", "99999999T", "forever"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn images_are_pairs_of_name_and_path() {
        assert_eq!(parse_image("centos=/images/c"), Ok(("centos".to_owned(), "/images/c".to_owned())));
        for bad in ["centos", "=/x", "centos=relative", "centos=/my images"] {
            assert!(parse_image(bad).is_err(), "{bad}");
        }
    }
}
