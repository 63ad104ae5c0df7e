//! Holds every path of a crate to the order that its `lib.rs` states: the rooms of the operator, and the parts of the machine. What lies
//! between crates their manifests say.

use std::fmt::{self, Write as _};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A path in the code: where it stands, and the modules and names that it goes through from the root of the crate.
struct Arrow {
    file: PathBuf,
    line: usize,
    from: Vec<String>,
    to: Vec<String>,
}

impl fmt::Display for Arrow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: `{}`", self.file.display(), self.line, self.to.join("::"))
    }
}

/// Collects the arrows of one file. Comments are none: tokens only are looked at, those in macros too.
struct Finder<'a> {
    file: &'a Path,
    found: Vec<Arrow>,
}

impl Finder<'_> {
    fn all(file: &Path, text: &str) -> Vec<Arrow> {
        let module = module_of(file);
        let mut finder = Finder { file, found: Vec::new() };
        finder.walk(text.parse().unwrap_or_else(|error| panic!("{}: {error}", file.display())), &module);
        finder.found
    }

    fn walk(&mut self, tokens: TokenStream, module: &[String]) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut inner = module.to_vec();
        for (at, token) in tokens.iter().enumerate() {
            match token {
                // The rest of a path: `follow` has been there.
                TokenTree::Group(_) if at >= 2 && separates(&tokens, at - 2) => {}
                TokenTree::Group(group) => {
                    self.walk(group.stream(), &inner);
                    inner.truncate(module.len());
                }
                TokenTree::Ident(ident) => {
                    let first = at < 2 || !separates(&tokens, at - 2);
                    let root = match ident.to_string().as_str() {
                        "mod" => {
                            if let Some(TokenTree::Ident(name)) = tokens.get(at + 1) {
                                inner.push(name.to_string());
                            }
                            continue;
                        }
                        "crate" | "htc_operator" => Vec::new(),
                        // Another crate. Its name is kept: `only_listed_files_know_the_kubernetes_backend` asks for it.
                        "htc_machine" => vec!["htc_machine".to_owned()],
                        "self" => module.to_vec(),
                        "super" => above(module),
                        _ => continue,
                    };
                    if first && separates(&tokens, at + 1) {
                        self.follow(&tokens, at + 3, root, module);
                    }
                }
                TokenTree::Punct(punct) if punct.as_char() == ';' => inner.truncate(module.len()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }

    /// Follows a path, or a tree of them, from `at` on; `so_far` is where it has come to.
    fn follow(&mut self, tokens: &[TokenTree], at: usize, mut so_far: Vec<String>, module: &[String]) {
        match tokens.get(at) {
            Some(TokenTree::Ident(ident)) => {
                match ident.to_string().as_str() {
                    "self" => {}
                    "super" => so_far = above(&so_far),
                    name => so_far.push(name.to_owned()),
                }
                if separates(tokens, at + 1) {
                    return self.follow(tokens, at + 3, so_far, module);
                }
            }
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                for (start, _) in inner.iter().enumerate() {
                    if start == 0 || matches!(&inner[start - 1], TokenTree::Punct(punct) if punct.as_char() == ',') {
                        self.follow(&inner, start, so_far.clone(), module);
                    }
                }
                return;
            }
            _ => {}
        }
        let line = tokens.get(at.min(tokens.len() - 1)).map_or(0, |token| token.span().start().line);
        self.found.push(Arrow { file: self.file.to_owned(), line, from: module.to_vec(), to: so_far });
    }
}

fn separates(tokens: &[TokenTree], at: usize) -> bool {
    let colon = |at: usize| matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == ':');
    colon(at) && colon(at + 1)
}

fn above(module: &[String]) -> Vec<String> {
    module.get(..module.len().saturating_sub(1)).unwrap_or_default().to_vec()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The module that a file is, such as `src/http/port.rs`.
fn module_of(file: &Path) -> Vec<String> {
    let inside = file.iter().skip_while(|part| *part != "src").skip(1).collect::<PathBuf>();
    let module: Vec<String> =
        inside.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if module == ["lib"] { Vec::new() } else { module }
}

/// Every file of a crate, from the top of the checkout on.
fn files(krate: &str) -> Vec<PathBuf> {
    let (mut folders, mut found) = (vec![root().join(krate).join("src")], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path.strip_prefix(root()).unwrap().to_owned());
            }
        }
    }
    found
}

/// Every file that the operator is made of.
fn all_files() -> Vec<PathBuf> {
    ["", "crates/support", "crates/ledger", "crates/htcondor", "crates/submit"].into_iter().flat_map(files).collect()
}

fn read(file: &Path) -> String {
    fs::read_to_string(root().join(file)).unwrap()
}

/// Every arrow in a crate.
fn arrows(krate: &str) -> Vec<Arrow> {
    let found: Vec<Arrow> = files(krate).iter().flat_map(|file| Finder::all(file, &read(file))).collect();
    assert!(found.len() > 100, "only {} paths were found", found.len());
    found
}

/// What the documentation of a module lists, in its order; it must list every module that the file declares.
fn listed(file: &str) -> Vec<String> {
    let text = read(Path::new(file));
    let listed: Vec<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("//! - "))
        .map(|item| {
            item.trim_start_matches('[')
                .trim_start_matches('`')
                .trim_start_matches("mod@")
                .split('`')
                .next()
                .unwrap()
                .to_owned()
        })
        .collect();
    let mut declared: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod ").or_else(|| line.strip_prefix("mod "))?.strip_suffix(';'))
        .collect();
    let mut sorted: Vec<&str> = listed.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    declared.sort_unstable();
    assert_eq!(sorted, declared, "{file}: its documentation lists its modules in their order, each once");
    listed
}

/// Which arrows lead to what comes later in `order`, or to nothing in it.
fn broken(arrows: &[Arrow], order: &[String], file: &str) -> String {
    let mut said = String::new();
    let place = |path: &[String]| order.iter().position(|name| Some(name) == path.first());
    for arrow in arrows {
        let (from, to) = (arrow.from.first(), arrow.to.first());
        if from.is_none() || from == to {
            continue;
        }
        let (Some(from), Some(to)) = (from, to) else {
            writeln!(said, "{arrow}: name the module that is meant").unwrap();
            continue;
        };
        match (place(&arrow.from), place(&arrow.to)) {
            (Some(here), Some(there)) if there < here => {}
            (Some(_), Some(_)) => {
                writeln!(said, "{arrow}: {from} must not use {to}, which comes after it in the order of {file}")
                    .unwrap();
            }
            (_, _) => {
                writeln!(said, "{arrow}: name a module that {file} lists, and from where it is").unwrap();
            }
        }
    }
    said
}

#[test]
fn each_module_uses_only_earlier_modules() {
    let mut order = listed("src/lib.rs");
    // The program itself, which uses all of them.
    order.push("main".to_owned());
    let mut inside = arrows("");
    inside.retain(|arrow| arrow.to.first().is_none_or(|name| name != "htc_machine"));
    let said = broken(&inside, &order, "src/lib.rs");
    assert!(said.is_empty(), "\n{said}");
}

#[test]
fn each_module_of_the_machine_uses_only_earlier_modules() {
    let file = "crates/machine/src/lib.rs";
    let said = broken(&arrows("crates/machine"), &listed(file), file);
    assert!(said.is_empty(), "\n{said}");
}

/// What is the Kubernetes backend's own.
const KUBERNETES: [&[&str]; 3] = [&["backends", "pods"], &["htc_machine", "pods"], &["htcjob", "pods"]];
/// Who else knows it by name: docs/architecture.md says why.
const KNOW_KUBERNETES: [&str; 3] = ["src/backends.rs", "src/cli/check/pods.rs", "src/htcjob/reconcile.rs"];

/// Whether `Backend::Kubernetes` stands there.
fn names_kubernetes(tokens: TokenStream) -> bool {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let is = |at: usize, name: &str| matches!(tokens.get(at), Some(TokenTree::Ident(ident)) if ident == name);
    (0..tokens.len()).any(|at| match &tokens[at] {
        TokenTree::Group(group) => names_kubernetes(group.stream()),
        _ => is(at, "Backend") && separates(&tokens, at + 1) && is(at + 3, "Kubernetes"),
    })
}

#[test]
fn only_listed_files_know_the_kubernetes_backend() {
    let its_own = |path: &[String]| {
        KUBERNETES.iter().any(|its| path.iter().map(String::as_str).take(its.len()).eq(its.iter().copied()))
    };
    let mut known: Vec<String> = arrows("")
        .into_iter()
        .filter(|arrow| its_own(&arrow.to) && !its_own(&arrow.from))
        .map(|arrow| arrow.file.display().to_string())
        .collect();
    for file in files("") {
        let text = read(&file);
        if !its_own(&module_of(&file)) && names_kubernetes(text.parse().unwrap()) {
            known.push(file.display().to_string());
        }
    }
    known.sort_unstable();
    known.dedup();
    assert_eq!(known, KNOW_KUBERNETES, "all others ask src/backends.rs, or go by crates/machine/src/runs.rs");
}

#[test]
fn every_form_of_a_path_is_found() {
    let text = r#"
        //! [`crate::comment`]
        use crate::{a, b::{self, c as d}};
        use super::{e, super::f::*};
        pub(crate) use self::g::h;
        fn it(x: &crate::i::J) { say!("{}", vec![$crate::k::L]); "crate::text"; r::crate_::s; }
        mod tests { use super::*; use super::super::super::m; mod inner { use super::super::n; } }
        mod elsewhere;
        use super::o;
    "#;
    let found = Finder::all(Path::new("src/one/two.rs"), text);
    let seen: Vec<String> = found.iter().map(|arrow| format!("{} {}", arrow.line, arrow.to.join("::"))).collect();
    assert_eq!(
        seen,
        [
            "3 a",
            "3 b",
            "3 b::c",
            "4 one::e",
            "4 f",
            "5 one::two::g::h",
            "6 i::J",
            "6 k::L",
            "7 one::two",
            "7 m",
            "7 one::two::n",
            "9 one::o"
        ]
    );
}

#[test]
fn ports_are_served_with_connection_limits() {
    // What else could listen. `http::port::serve` is the one way that has a door.
    let others = ["TcpListener", "TcpSocket", "UnixListener", "HttpServer", "actix_server"];
    let mut said = String::new();
    for file in all_files() {
        let text = read(&file);
        let shipped = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        if file == Path::new("src/http/port.rs") || file == Path::new("src/order.rs") || file.ends_with("tests.rs") {
            continue;
        }
        for (number, line) in shipped.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
            if let Some(other) = others.iter().find(|other| line.contains(**other)) {
                writeln!(said, "{}:{}: {other}: use http::port::serve", file.display(), number + 1).unwrap();
            }
        }
    }
    assert!(said.is_empty(), "\n{said}");
}

/// Calls that wait for several things at once, or share permits without regard to namespaces.
const SHARED_BLINDLY: [&str; 5] = ["Semaphore", "join_all", "buffer_unordered", ".buffered(", "for_each_concurrent"];
/// Where that is right, and why.
const MAY_SHARE_BLINDLY: [(&str, &str); 7] = [
    ("crates/support/src/fair_limiter.rs", "permits by key"),
    ("src/jobs_api/output_volume.rs", "the operator's own volume"),
    ("src/jobs_api/files.rs", "what one user asks for"),
    ("crates/htcondor/src/tools.rs", "memory of answers"),
    ("src/htcjob/events.rs", "a namespace in trouble is left out of it"),
    ("src/backends/kept_logs.rs", "logs of one HTCJob, each with a turn of its namespace"),
    ("src/cli/check", "a command of one person"),
];

#[test]
fn limiters_are_shared_by_namespace() {
    let mut said = String::new();
    for file in all_files() {
        if file == Path::new("src/order.rs") || MAY_SHARE_BLINDLY.iter().any(|(place, _)| file.starts_with(place)) {
            continue;
        }
        let text = read(&file);
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
            if let Some(what) = SHARED_BLINDLY.iter().find(|what| line.contains(**what)) {
                writeln!(said, "{}:{}: {what}: use FairLimiter", file.display(), number + 1).unwrap();
            }
        }
    }
    assert!(said.is_empty(), "a call that hangs in one namespace would delay others\n{said}");
}

#[test]
fn what_is_known_of_an_htcjob_is_forgotten_with_it() {
    let stores = all_files().iter().map(|file| read(file).matches("\nimpl Forget for ").count()).sum::<usize>();
    let list = format!("fn stores(&self) -> [&dyn Forget; {stores}]");
    assert!(read(Path::new("src/htcjob.rs")).contains(&list), "there are {stores} stores: list all in Context::stores");
}

/// Who makes clients of the API server that have no fence.
const WITHOUT_A_FENCE: [(&str, &str); 7] = [
    ("crates/support/src/fence.rs", "puts the fence around one"),
    ("crates/support/src/image_registry.rs", "asks registries of images, by HEAD"),
    ("crates/support/src/kubernetes.rs", "makes one for those that are named here"),
    ("src/cli/check/environment.rs", "commands of a person; `check::adopt` puts a fence around it"),
    ("src/cli/run/startup.rs", "for the Lease, and for the keys of the jobs' tokens"),
    ("src/jobs_api/front.rs", "asks whether a user may"),
    ("src/jobs_api/front/identity.rs", "speaks to the leader"),
];

#[test]
fn modules_of_the_leader_write_with_a_fence() {
    let makes = ["Client::new(", "Client::try_", "ClientBuilder", "kubernetes::client("];
    let mut found: Vec<String> = Vec::new();
    for file in all_files() {
        let text = read(&file);
        let shipped = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        if file != Path::new("src/order.rs")
            && !file.ends_with("tests.rs")
            && makes.iter().any(|make| shipped.contains(make))
        {
            found.push(file.display().to_string());
        }
    }
    found.sort_unstable();
    assert_eq!(
        found,
        WITHOUT_A_FENCE.map(|(file, _)| file),
        "a part of the leader is handed the client of `cli::run::startup`"
    );
}
