use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// CEL rule for fields with a number of cores.
pub(super) const CORES: &str = "type(self) == int ? self >= 1 : self.matches('^[0-9]{1,6}(m|[.][0-9]{1,3})?$')";
/// CEL rule for fields with a number of bytes.
pub(super) const BYTES: &str =
    "type(self) == int ? self >= 1 : self.matches('^[0-9]{1,15}([.][0-9]{1,3})?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$')";

/// A Kubernetes quantity: a number, or text such as `500m`, `2Gi`, `1.5G`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(untagged)]
pub enum Quantity {
    /// A whole number without a unit.
    Number(i64),
    /// A decimal number with one of Kubernetes' suffixes.
    Text(String),
}

/// Error: the text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a valid Kubernetes quantity; use for example 500m, 2Gi or 1.5G")]
pub struct QuantityError(String);

/// Suffixes of Kubernetes and their values, in thousandths.
const SUFFIXES: [(&str, u128); 12] = [
    ("Ki", 1000 << 10),
    ("Mi", 1000 << 20),
    ("Gi", 1000 << 30),
    ("Ti", 1000 << 40),
    ("Pi", 1000 << 50),
    ("k", 1_000_000),
    ("M", 1_000_000_000),
    ("G", 1_000_000_000_000),
    ("T", 1_000_000_000_000_000),
    ("P", 1_000_000_000_000_000_000),
    ("m", 1),
    ("", 1000),
];

impl Quantity {
    /// Returns the value in whole `unit`s, rounded up and at least 1. Fails if it is not a quantity or too large.
    pub fn in_units_of(&self, unit: u64) -> Result<u64, QuantityError> {
        let wrong = || QuantityError(self.to_string());
        let thousandths = match self {
            Self::Number(number) => u128::try_from(*number).ok().map(|number| number * 1000),
            Self::Text(text) => thousandths(text),
        };
        let units = thousandths.ok_or_else(wrong)?.div_ceil(u128::from(unit.max(1)) * 1000).max(1);
        u64::try_from(units).map_err(|_| wrong())
    }
}

impl std::fmt::Display for Quantity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// Parses a quantity into thousandths. It accepts at most three digits after the point, as Kubernetes does.
fn thousandths(text: &str) -> Option<u128> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let (_, scale) = SUFFIXES.iter().find(|(name, _)| *name == suffix)?;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || whole.len() > 15 || part.len() > 3 || (part.is_empty() && number.contains('.')) {
        return None;
    }
    let part: u128 = format!("{part:0<3}").parse().ok()?;
    let number = whole.parse::<u128>().ok()? * 1000 + part;
    number.checked_mul(*scale).map(|product| product.div_ceil(1000))
}

impl JsonSchema for Quantity {
    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "maxLength": 32,
            "x-kubernetes-int-or-string": true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantity_is_rounded_up_to_whole_units() {
        let text = |text: &str, unit| Quantity::Text(text.to_owned()).in_units_of(unit);
        assert_eq!(text("500m", 1), Ok(1));
        assert_eq!(text("1001m", 1), Ok(2));
        assert_eq!(text("4", 1), Ok(4));
        assert_eq!(text("2Gi", 1 << 20), Ok(2048));
        assert_eq!(text("1.5Gi", 1 << 20), Ok(1536));
        assert_eq!(text("500M", 1 << 20), Ok(477));
        assert_eq!(text("1", 1 << 20), Ok(1));
        assert_eq!(text("10Gi", 1 << 10), Ok(10 << 20));
        assert_eq!(Quantity::Number(3).in_units_of(1), Ok(3));
        assert_eq!(Quantity::Number(1 << 30).in_units_of(1 << 20), Ok(1024));
        for bad in ["", "Gi", "1 Gi", "1GB", "-1", "1.", ".5", "1.2345", "1e3", "1gi", "9999999999999999", "ä"] {
            assert!(text(bad, 1).is_err(), "{bad:?}");
        }
        assert!(Quantity::Number(-1).in_units_of(1).is_err());
    }
}
