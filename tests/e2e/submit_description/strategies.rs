//! Texts that users could write, most of them not in good faith.

use htc_submit::htcopts::Attributes;
use proptest::prelude::*;

/// Submit commands, allowed ones and others.
const COMMANDS: &str = "\
    accounting_group accounting_group_user max_retries retry_until success_exit_code \
    on_exit_hold on_exit_remove on_exit_hold_reason periodic_hold periodic_remove priority rank \
    requirements request_memory request_cpus request_disk request_licences concurrency_limits \
    notification executable arguments environment transfer_input_files transfer_output_remaps \
    queue log batch_name";

/// A character with a meaning to some parser on the way, or none.
fn hostile_character() -> impl Strategy<Value = char> {
    prop_oneof![
        4 => prop::sample::select("\n\r\t\0\x1b\"'\\$@#=;:,(){}[]<>|&!?%~^`*+-./ ".chars().collect::<Vec<_>>()),
        4 => prop::char::range('a', 'z'),
        1 => prop::char::range('0', '9'),
        1 => prop::sample::select("äß€日本\u{85}\u{2028}\u{feff}🦀".chars().collect::<Vec<_>>()),
        1 => any::<char>(),
    ]
}

pub(crate) fn hostile_text() -> impl Strategy<Value = String> {
    let fragment = prop_oneof![
        6 => prop::collection::vec(hostile_character(), 0..6).prop_map(String::from_iter),
        1 => prop::sample::select(vec![
            "$(Process)", "$ENV(SECRET)", "$$(Arch)", "$RANDOM_CHOICE(1,2)", "\nqueue 5\n", "\\\n", "@=end\n", "\n+HTCJobUID = \"x\"\n",
            "\ninclude command : touch /tmp/x\n", "\"\nexecutable = /bin/true\n", "$INT(X)", "(1", "))", "{", "#", "if true\n",
        ]).prop_map(str::to_owned),
    ];
    prop::collection::vec(fragment, 0..4).prop_map(|parts| parts.concat())
}

/// Expressions of every form that the parser knows.
fn expression() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(vec![
        "0",
        "17",
        "2.5",
        "x",
        "MY.x",
        "TARGET.y.z",
        "true",
        "undefined",
        "error",
        "\"a b\"",
    ]);
    leaf.prop_map(str::to_owned).prop_recursive(3, 12, 3, |inner| {
        let operator = prop::sample::select(vec![
            "||", "&&", "|", "^", "&", "==", "!=", "=?=", "=!=", "<", "<=", ">", ">=", "<<", ">>", ">>>", "+", "-",
            "*", "/", "%",
        ]);
        prop_oneof![
            (inner.clone(), operator, inner.clone()).prop_map(|(a, operator, b)| format!("{a} {operator} {b}")),
            inner.clone().prop_map(|a| format!("({a})")),
            ("[!~-]", inner.clone()).prop_map(|(sign, a)| format!("{sign}({a})")),
            (inner.clone(), inner.clone(), inner.clone()).prop_map(|(a, b, c)| format!("({a}) ? ({b}) : ({c})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}) ?: ({b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{{{a}, {b}}}[0]")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("ifThenElse({a}, size({b}), time())")),
        ]
    })
}

pub(crate) fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => expression(),
        3 => hostile_text(),
        4 => hostile_text().prop_map(|text| format!("\"{text}\"")),
        // What may stand in a string, so that many of these are accepted.
        6 => "[a-z0-9 #@=;:'<>{}()!?%~^&|äß€日🦀,.-]{0,24}".prop_map(|text| format!("\"{text}\"")),
        2 => (0..100_000_u32).prop_map(|number| number.to_string()),
        2 => "[A-Z][a-z]{1,6}[0-9]{0,2} (==|>|<|=!=|&&) [0-9]{1,4}",
        1 => "[a-z][a-z0-9_.]{0,9}",
        1 => "[1-9]{1,3} ?[KMG]B?",
    ]
}

/// Attributes that may be set, in any spelling.
fn attribute() -> impl Strategy<Value = String> {
    (prop::sample::select(Attributes::usual().collect::<Vec<_>>()), 0..3).prop_map(|(name, case)| match case {
        0 => name.to_owned(),
        1 => name.to_ascii_lowercase(),
        _ => name.to_ascii_uppercase(),
    })
}

pub(crate) fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        5 => ("(\\+|MY\\.|my\\.|My\\.)", attribute()).prop_map(|(scope, name)| scope + &name),
        1 => ("(\\+|MY\\.|my\\.|My\\.)", "[A-Za-z][A-Za-z0-9_]{0,12}").prop_map(|(scope, name)| scope + &name),
        5 => prop::sample::select(COMMANDS.split_ascii_whitespace().collect::<Vec<_>>()).prop_map(str::to_owned),
        1 => hostile_text(),
        1 => hostile_text().prop_map(|text| format!("+{text}")),
    ]
}
