//! Functions that expressions may call, and the maximum size of their values.

use super::value::{Value, ValueKind, limited};
use super::{ExpressionProblem, pattern};

/// Functions whose value depends only on their arguments and the time. Left out are those that read the account or an
/// administrator's map (`userHome`, `userMap`), evaluate an expression hidden in a string (`eval`), write to logs
/// (`debug`), return another value each time (`random`), handle environments and arguments, or can return uninitialized
/// memory (`formatTime` with a format whose result has more than 1023 characters).
const FUNCTIONS: &str = "\
    abstime allcompare anycompare avg bool ceil ceiling countmatches currenttime daytime floor \
    getdayofmonth getdayofweek getdayofyear getdays gethours getminutes getmonth \
    getseconds getyear identicalmember ifthenelse int interval isabstime isboolean isclassad \
    iserror isinteger islist isreal isreltime isstring isundefined join log max member min pow \
    quantize real regexp regexpmember regexps reltime replace replaceall round size split \
    splitslotname splittime splitusername strcat strcmp stricmp string stringlistimember \
    stringlistmax stringlistmember stringlistmin stringlistsize stringlistsum substr sum time \
    tolower toupper version_in_range versioncmp versioneq versionge versiongt versionle";

/// Maximum arguments of one call.
const MAX_ARGUMENTS: usize = 32;
/// Maximum bytes of the record that `splitTime` returns.
const SPLIT_TIME: u64 = 512;
/// Options allowed for regular expressions: `f` returns the replaced text with its surroundings, `g` replaces all
/// matches, `i` ignores case, and `s` lets `.` match line breaks. `x` would ignore the spaces of a pattern, and `m`
/// would let `^` match at the beginning of each line.
const OPTIONS: &str = "fgis";

/// Returns the function of that name, as [`FUNCTIONS`] spells it.
pub(super) fn find(name: &str) -> Option<&'static str> {
    FUNCTIONS.split_ascii_whitespace().find(|function| name.eq_ignore_ascii_case(function))
}

/// Returns the bounds of a call's value, and the steps of its regular expression.
pub(super) fn call<'a>(function: &'static str, arguments: &[Value<'a>]) -> Result<(Value<'a>, u64), ExpressionProblem> {
    if arguments.len() > MAX_ARGUMENTS {
        return Err(ExpressionProblem::Arguments(function));
    }
    let bytes = |number: usize| arguments.get(number).map_or(0, |argument| argument.bytes);
    let all = arguments.iter().fold(0_u64, |sum, argument| sum.saturating_add(argument.bytes));
    let value = |kind: ValueKind, bytes: u64| limited(function, bytes).map(|bytes| Value::of(kind, bytes));
    match function {
        "strcat" => value(ValueKind::Text, all).map(|value| (value, 0)),
        // A separator may follow every byte of the other arguments: a list can have that many items.
        "join" => value(ValueKind::Text, all.saturating_mul(bytes(0).saturating_add(1))).map(|value| (value, 0)),
        "string" | "substr" | "tolower" | "toupper" => value(ValueKind::Text, bytes(0)).map(|value| (value, 0)),
        // Each byte may become an item, with quotes and a comma.
        "split" | "splitslotname" | "splitusername" => {
            value(ValueKind::List, bytes(0).saturating_mul(4).saturating_add(4)).map(|value| (value, 0))
        }
        "splittime" => value(ValueKind::Other, SPLIT_TIME).map(|value| (value, 0)),
        "ifthenelse" => {
            let two = |number: usize| arguments.get(number).copied().unwrap_or_else(Value::number);
            Ok((two(1).or(two(2)), 0))
        }
        "replace" | "replaceall" | "regexps" => {
            let text = bytes(1).max(1);
            let grown = text.saturating_add(bytes(2).saturating_mul(text.saturating_add(1)));
            let searches = if replaces_all(function, arguments) { text } else { 1 };
            let steps = regular_expression(function, arguments, 3)?.saturating_mul(searches);
            value(ValueKind::Text, grown).map(|value| (value, steps))
        }
        "regexp" | "regexpmember" => Ok((Value::number(), regular_expression(function, arguments, 2)?)),
        _ => Ok((Value::number(), 0)),
    }
}

/// Returns whether a call replaces every match, and so searches again after each.
fn replaces_all(function: &str, arguments: &[Value<'_>]) -> bool {
    let options = arguments.get(3).and_then(|argument| argument.literal);
    function == "replaceall" || options.is_some_and(|letters| letters.contains('g'))
}

/// Returns the steps of a call whose first argument is a regular expression and whose second argument is searched.
/// `options` is the position of the options argument.
fn regular_expression(
    function: &'static str,
    arguments: &[Value<'_>],
    options: usize,
) -> Result<u64, ExpressionProblem> {
    let literal = |number: usize| arguments.get(number).and_then(|argument| argument.literal);
    let pattern = literal(0).ok_or(ExpressionProblem::NoLiteral(function))?;
    if arguments.len() > options {
        let letters = literal(options).ok_or(ExpressionProblem::NoLiteral(function))?;
        if !letters.chars().all(|letter| OPTIONS.contains(letter)) {
            return Err(ExpressionProblem::Options(function));
        }
    }
    pattern::steps(pattern, arguments.get(1).map_or(1, |text| text.bytes.max(1)))
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn size_of_values_is_bounded() {
        let bytes = |text: &str| check(text).map(|extent| extent.bytes);
        for (text, most) in [
            ("\"four\"", 4),
            ("12 + 3 * 4", 40),
            ("a == \"long text\"", 40),
            ("!a", 40),
            ("true", 40),
            ("MY.a", 256),
            ("strcat(\"ab\", a, 1)", 2 + 256 + 40),
            ("join(\",\", a, b)", (1 + 512) * 2),
            ("ifThenElse(a, \"one\", \"three\")", 5),
            ("a ? \"one\" : \"three\"", 5),
            ("\"one\" ?: \"three\"", 5),
            ("toUpper(substr(strcat(a, b), 3))", 512),
            ("size(strcat(a, b))", 40),
            ("replaceAll(\"a\", b, \"\")", 256),
            ("replaceAll(\"^a\", b, \"12\")", 256 + 2 * 257),
            ("split(a, \".\")[0]", 4 * 256 + 4),
            ("{\"a\", \"b\"}[ProcId]", 2 + 5 + 5),
        ] {
            assert_eq!(bytes(text), Ok(most), "{text}");
        }
        let sixteen = ["a"; 16].join(", ");
        assert_eq!(bytes(&format!("strcat({sixteen})")), Ok(4096));
        for (text, part) in [
            (format!("strcat({sixteen}, \"b\")"), "strcat"),
            (format!("size(strcat({sixteen}, \"b\")) == 1"), "strcat"),
            (format!("ifThenElse(true, \"\", strcat({sixteen}, \"b\"))"), "strcat"),
            ("join(\"0123456789\", a, b)".to_owned(), "join"),
            ("strcat(strcat(a,a,a,a), strcat(a,a,a,a), strcat(a,a,a,a), strcat(a,a,a,a), 1)".to_owned(), "strcat"),
            ("replaceAll(\"\", a, \"0123456789abcdef\")".to_owned(), "replaceall"),
            ("regexps(\"a\", b, \"0123456789abcdef\", \"g\")".to_owned(), "regexps"),
            ("split(strcat(a, a, a, a))".to_owned(), "split"),
            (format!("{{{sixteen}}}"), "a list"),
        ] {
            assert!(
                matches!(check(&text), Err(ExpressionProblem::TooLarge { part: found, .. }) if found == part),
                "{text}"
            );
        }
        assert_eq!(check(&format!("strcat({})", ["1"; 33].join(","))), Err(ExpressionProblem::Arguments("strcat")));
        assert_eq!(check(&format!("{{{}}}", ["1"; 257].join(","))), Err(ExpressionProblem::TooManyItems));
    }

    #[test]
    fn regular_expressions_are_literals_with_bounded_cost() {
        for text in [
            "regexp(\"^node[0-9]+[.]\", TARGET.Machine)",
            "regexp(\"a.*b\", TARGET.Machine, \"i\")",
            "regexpMember(\"^el[89]\", {\"el8\", \"el9\"})",
            "regexps(\"^a(b+)\", MY.x, \"c\", \"g\")",
        ] {
            assert!(check(text).is_ok(), "{text}: {:?}", check(text));
        }
        for text in [
            "regexp(MY.x, TARGET.Machine)",
            "regexp(strcat(\"a\", \"b\"), TARGET.Machine)",
            "regexp((\"a\"), TARGET.Machine)",
            "regexp(\"a\", TARGET.Machine, MY.x)",
            "regexp()",
        ] {
            assert!(matches!(check(text), Err(ExpressionProblem::NoLiteral(_))), "{text}");
        }
        assert!(matches!(check("regexp(\"(a+)+b\", x)"), Err(ExpressionProblem::Pattern(_))));
    }

    #[test]
    fn only_options_that_keep_the_meaning_of_a_pattern_are_allowed() {
        for options in ["", "i", "gfsi"] {
            assert!(check(&format!("regexp(\"a\", x, \"{options}\")")).is_ok(), "{options}");
        }
        for (text, function) in [
            ("regexp(\"^(a +) +[bc]\", \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\", \"x\")", "regexp"),
            ("regexpMember(\"^a\", {\"a\"}, \"ix\")", "regexpmember"),
            ("regexps(\"^a.*b\", x, \"\", \"m\")", "regexps"),
            ("replaceAll(\"^a\", x, \"\", \"X\")", "replaceall"),
            ("regexp(\"a\", x, \"(?i)\")", "regexp"),
        ] {
            assert_eq!(check(text), Err(ExpressionProblem::Options(function)), "{text}");
        }
    }

    #[test]
    fn total_cost_of_regular_expressions_is_bounded() {
        for (pattern, most) in
            [("a.*b", 2), ("^a.*b.*c", 2), ("^[a-z]+[0-9]+[.](cern|desy)[.](ch|de)", 2), ("node", 201)]
        {
            let times = |number: usize| vec![format!("regexp(\"{pattern}\", TARGET.Machine)"); number].join(" || ");
            assert!(check(&times(most)).is_ok(), "{pattern}: {:?}", check(&times(most)));
            if most < 201 {
                assert_eq!(check(&times(most + 1)), Err(ExpressionProblem::TooSlow), "{pattern}");
            }
        }
        for text in ["regexp(\"a.*b.*c\", x)", "regexp(\"^.*.*.*d\", x)", "regexp(\"a.*b\", strcat(x, x))"] {
            assert_eq!(check(text), Err(ExpressionProblem::TooSlow), "{text}");
        }
    }

    #[test]
    fn replace_all_is_charged_for_repeated_searches() {
        for text in [
            "replace(\"[.].*\", x, \"\")",
            "regexps(\"[.].*\", x, \"\", \"f\")",
            "replaceAll(\"a\", x, \"\")",
            "replaceAll(\"^a.*\", x, \"\")",
        ] {
            assert!(check(text).is_ok(), "{text}: {:?}", check(text));
        }
        for text in [
            "replaceAll(\"[.].*\", x, \"\")",
            "replace(\"[.].*\", x, \"\", \"g\")",
            "regexps(\"[.].*\", x, \"\", \"gf\")",
        ] {
            assert_eq!(check(text), Err(ExpressionProblem::TooSlow), "{text}");
        }
    }

    #[test]
    fn documentation_lists_the_allowed_functions() {
        let page = include_str!("../../../../../docs/htcopts.md");
        let list = page.split("<!-- functions -->").nth(1).and_then(|rest| rest.split("<!-- end").next()).unwrap();
        let documented: Vec<_> = list.split_ascii_whitespace().map(|name| name.trim_matches('`')).collect();
        let allowed: Vec<_> = FUNCTIONS.split_ascii_whitespace().collect();
        assert_eq!(documented, allowed);
    }
}
