//! What may follow on the command line: for kubectl's own completion of `kubectl runnel`.
//!
//! Commands, flags and their values come from the command line's definition, names from the
//! kubeconfig and the hub. A hub that does not answer at once is no error: there are no names then.
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use clap::builder::PossibleValue;
use clap::{ArgMatches, Command};
use kube::config::Kubeconfig;
use runnel_api::MemberCluster;
use runnel_api::conditions::ConditionType;
use runnel_proto::model::is_subdomain;
use serde_json::Value;

use super::access::{Cluster, ConnectionFlags};
use super::args::Connection;
use super::objects::{HasConditions, Rule, labels_text, member_name};
use super::read_cluster::API;

/// The script that kubectl runs: it asks this plugin.
pub const SCRIPT: &str = "#!/bin/sh
# Save as kubectl_complete-runnel in a folder of PATH, and make it executable.
exec kubectl-runnel __complete -- \"$@\"
";

/// The time limit for names. A person waits for them.
const LIMIT: Duration = Duration::from_secs(1);
/// The most names of one kind.
const MOST_NAMES: usize = 300;
/// The directives of kubectl's completion: no files, and no space after the word.
const NO_FILES: u8 = 4;
const NO_SPACE: u8 = 2;

/// A word that may follow, and what it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidate {
    /// The word.
    pub word: String,
    /// A short description; may be empty.
    pub about: String,
}

impl Candidate {
    fn new(word: impl Into<String>, about: impl ToString) -> Self {
        let about = about.to_string();
        Self {
            word: word.into(),
            about: about.lines().next().unwrap_or_default().to_owned(),
        }
    }

    fn plain(word: impl Into<String>) -> Self {
        Self::new(word, "")
    }
}

/// Names that the command line's definition does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// Rules, as NAME, NAMESPACE/NAME or cdrule/NAME.
    Rules,
    /// Member clusters.
    Members,
    /// The member cluster of a copy, which continues with `/`.
    CopyClusters,
    /// Namespaces of the hub.
    Namespaces,
    /// Contexts of the kubeconfig.
    Contexts,
    /// Clusters of the kubeconfig.
    Clusters,
    /// Users of the kubeconfig.
    Users,
}

/// Returns what kubectl reads: a candidate with its description on each line, and the directive.
pub fn answer(root: &Command, words: &[String]) -> String {
    let (last, before) = match words.split_last() {
        Some((last, before)) => (last.clone(), before),
        None => (String::new(), words),
    };
    let mut found = candidates(root, before, &last);
    let mut directive = NO_FILES;
    if let Some(names) = names(root, before, &last) {
        let access = Access::of(root, before);
        found.extend(within_limit(move || lookup(&access, names, &last)));
        if names == Names::CopyClusters {
            directive |= NO_SPACE;
        }
    }
    found.sort();
    found.dedup_by(|one, other| one.word == other.word);
    let line = |one: &Candidate| match one.about.as_str() {
        "" => format!("{}\n", one.word),
        about => format!("{}\t{about}\n", one.word),
    };
    found.iter().map(line).collect::<String>() + &format!(":{directive}\n")
}

/// The command of the words before the last one, and the number of its arguments among them.
fn position<'a>(root: &'a Command, before: &[String]) -> (&'a Command, usize) {
    let (mut command, mut arguments, mut is_value) = (root, 0, false);
    for word in before {
        if std::mem::take(&mut is_value) {
            continue;
        }
        if word.starts_with('-') {
            is_value = !word.contains('=') && flag(root, command, word).is_some();
        } else if let Some(inner) = command.find_subcommand(word) {
            command = inner;
        } else {
            arguments += 1;
        }
    }
    (command, arguments)
}

/// Returns the flag that this word is, if a value follows it.
fn flag<'a>(root: &'a Command, command: &'a Command, word: &str) -> Option<&'a clap::Arg> {
    let long = word.strip_prefix("--");
    let mut short = word.strip_prefix('-').unwrap_or_default().chars();
    let short = short.next().filter(|_| short.next().is_none());
    let global = root.get_arguments().filter(|flag| flag.is_global_set());
    let mut flags = command.get_arguments().chain(global);
    let found = flags.find(|flag| {
        (long.is_some() && flag.get_long() == long)
            || (short.is_some() && flag.get_short() == short)
    })?;
    (found.get_action().takes_values() && !found.is_require_equals_set()).then_some(found)
}

/// Returns the candidates for the last word that the command line's definition has.
fn candidates(root: &Command, before: &[String], last: &str) -> Vec<Candidate> {
    let (command, arguments) = position(root, before);
    let mut found = Vec::new();
    if last.starts_with('-') {
        let global = root
            .get_arguments()
            .filter(|argument| argument.is_global_set());
        let overrides = |id| command.get_arguments().any(|own| own.get_id() == id);
        let flags = command
            .get_arguments()
            .chain(global.filter(|argument| !overrides(argument.get_id())));
        for argument in flags.filter(|argument| !argument.is_hide_set()) {
            if let Some(long) = argument.get_long() {
                let help = argument.get_help().map(ToString::to_string);
                found.push(Candidate::new(
                    format!("--{long}"),
                    help.unwrap_or_default(),
                ));
            }
        }
    } else if let Some(flag) = before.last().and_then(|word| flag(root, command, word)) {
        found.extend(flag.get_possible_values().iter().map(value));
    } else {
        let inner = command
            .get_subcommands()
            .filter(|inner| !inner.is_hide_set());
        found.extend(inner.map(|inner| {
            let about = inner.get_about().map(ToString::to_string);
            Candidate::new(inner.get_name(), about.unwrap_or_default())
        }));
        let next = command.get_positionals().nth(arguments);
        let values = next.map(clap::Arg::get_possible_values);
        found.extend(values.unwrap_or_default().iter().map(value));
    }
    found.retain(|candidate| candidate.word.starts_with(last));
    found
}

fn value(value: &PossibleValue) -> Candidate {
    let help = value.get_help().map(ToString::to_string);
    Candidate::new(value.get_name(), help.unwrap_or_default())
}

/// Returns the kind of the names that may follow.
fn names(root: &Command, before: &[String], last: &str) -> Option<Names> {
    let (command, arguments) = position(root, before);
    if last.starts_with('-') {
        return None;
    }
    if let Some(flag) = before.last().and_then(|word| flag(root, command, word)) {
        return match flag.get_long()? {
            "namespace" | "hub-namespace" => Some(Names::Namespaces),
            "context" | "hub-context" => Some(Names::Contexts),
            "cluster" => Some(Names::Clusters),
            "user" => Some(Names::Users),
            "clusters" => Some(Names::Members),
            _ => None,
        };
    }
    match (command.get_name(), arguments) {
        ("status" | "approve" | "history" | "revert" | "plan" | "wait", 0) => Some(Names::Rules),
        ("members" | "unjoin" | "forget-removal" | "orphans", 0) => Some(Names::Members),
        ("explain", 0) => Some(Names::CopyClusters),
        _ => None,
    }
}

/// The flags that lead to the cluster with the names.
#[derive(Debug, Default)]
struct Access {
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    namespace: Option<String>,
    connection: Connection,
}

impl Access {
    /// Reads the flags of an unfinished command line.
    fn of(root: &Command, before: &[String]) -> Self {
        let words = std::iter::once("kubectl-runnel").chain(before.iter().map(String::as_str));
        let lenient = root.clone().ignore_errors(true);
        let Ok(matches) = lenient.try_get_matches_from(words) else {
            return Self::default();
        };
        let mut innermost = &matches;
        while let Some((_, inner)) = innermost.subcommand() {
            innermost = inner;
        }
        let one = |id: &str| text(innermost, id).or_else(|| text(&matches, id));
        let groups = innermost.try_get_many::<String>("connection-as-group");
        // Of the commands with two clusters, --context is that of the member.
        let (context, connection) = match innermost.try_get_one::<String>("hub_context") {
            Ok(hub_context) => (hub_context.cloned(), Connection::default()),
            Err(_) => (
                one("context"),
                Connection {
                    as_user: one("connection-as"),
                    as_groups: groups
                        .ok()
                        .flatten()
                        .into_iter()
                        .flatten()
                        .cloned()
                        .collect(),
                    cluster: one("connection-cluster"),
                    user: one("connection-user"),
                    server: one("connection-server"),
                    token: one("connection-token"),
                    request_timeout: None,
                },
            ),
        };
        let kubeconfig = innermost.try_get_one::<PathBuf>("kubeconfig");
        Self {
            kubeconfig: kubeconfig.ok().flatten().cloned(),
            context,
            namespace: one("namespace"),
            connection,
        }
    }

    async fn hub(&self) -> Option<Cluster> {
        let connection = ConnectionFlags::read(&self.connection).ok()?;
        let (kubeconfig, context) = (self.kubeconfig.as_deref(), self.context.as_deref());
        Cluster::open("the hub", kubeconfig, context, &connection)
            .await
            .ok()
    }
}

fn text(matches: &ArgMatches, id: &str) -> Option<String> {
    matches.try_get_one::<String>(id).ok().flatten().cloned()
}

/// Runs a lookup on a thread of its own: a credential plugin of the kubeconfig may block. After the
/// limit there are no names, and the process ends.
fn within_limit(
    lookup: impl FnOnce() -> Option<Vec<Candidate>> + Send + 'static,
) -> Vec<Candidate> {
    let (sender, found) = mpsc::channel();
    std::thread::spawn(move || sender.send(lookup()));
    found.recv_timeout(LIMIT).ok().flatten().unwrap_or_default()
}

/// Returns names that begin with the last word; `None` if they are not available.
fn lookup(access: &Access, names: Names, last: &str) -> Option<Vec<Candidate>> {
    let mut found = match names {
        Names::Contexts | Names::Clusters | Names::Users => in_kubeconfig(access, names)?,
        _ => {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.ok()?.block_on(on_hub(access, names, last))?
        }
    };
    found.retain(|candidate| candidate.word.starts_with(last));
    found.truncate(MOST_NAMES);
    Some(found)
}

fn in_kubeconfig(access: &Access, names: Names) -> Option<Vec<Candidate>> {
    let read = match &access.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let read = read.ok()?;
    Some(match names {
        Names::Contexts => {
            let contexts = read.contexts.into_iter().map(|one| {
                let cluster = one.context.map(|context| context.cluster);
                Candidate::new(one.name, cluster.unwrap_or_default())
            });
            contexts.collect()
        }
        Names::Clusters => {
            let clusters = read.clusters.into_iter();
            clusters.map(|one| Candidate::plain(one.name)).collect()
        }
        _ => {
            let users = read.auth_infos.into_iter();
            users.map(|one| Candidate::plain(one.name)).collect()
        }
    })
}

async fn on_hub(access: &Access, names: Names, last: &str) -> Option<Vec<Candidate>> {
    let hub = access.hub().await?;
    match names {
        Names::Rules => {
            let namespace = access
                .namespace
                .as_deref()
                .unwrap_or(&hub.default_namespace);
            rules(&hub, namespace, last).await
        }
        Names::Members => members(&hub, "").await,
        Names::CopyClusters => members(&hub, "/").await,
        _ => {
            let path = format!("/api/v1/namespaces?limit={MOST_NAMES}");
            let found: Vec<Value> = hub.list("list the namespaces", &path).await.ok()?;
            let names = found
                .iter()
                .filter_map(|one| one["metadata"]["name"].as_str());
            Some(names.map(Candidate::plain).collect())
        }
    }
}

/// Rules of the namespace before the slash; without one, those of the context and cluster rules.
async fn rules(hub: &Cluster, namespace: &str, last: &str) -> Option<Vec<Candidate>> {
    let (before, namespace) = match last.split_once('/') {
        Some(("cdrule", _)) => ("cdrule/".to_owned(), None),
        Some((given, _)) => (format!("{given}/"), Some(given)),
        None => (String::new(), Some(namespace)),
    };
    let mut found = Vec::new();
    if let Some(namespace) = namespace.filter(|namespace| is_subdomain(namespace)) {
        let path = format!("{API}/namespaces/{namespace}/distributionrules?limit={MOST_NAMES}");
        let rules: Vec<Rule> = hub.list("list the rules", &path).await.ok()?;
        found.extend(rules.iter().map(|rule| rule_candidate(&before, rule)));
    }
    if before.is_empty() || namespace.is_none() {
        let path = format!("{API}/clusterdistributionrules?limit={MOST_NAMES}");
        // A tenant may not list them.
        let rules: Vec<Rule> = hub.list("list the rules", &path).await.unwrap_or_default();
        found.extend(rules.iter().map(|rule| rule_candidate("cdrule/", rule)));
    }
    Some(found)
}

fn rule_candidate(before: &str, rule: &Rule) -> Candidate {
    let ready = rule.condition(ConditionType::Ready);
    let about = match (ready.is_true(), ready.reason) {
        (true, _) => "ready".to_owned(),
        (false, "") => "not reconciled yet".to_owned(),
        (false, reason) => format!("not ready: {reason}"),
    };
    Candidate::new(format!("{before}{}", rule.name()), about)
}

async fn members(hub: &Cluster, after: &str) -> Option<Vec<Candidate>> {
    let path = format!("{API}/memberclusters?limit={MOST_NAMES}");
    let found: Vec<MemberCluster> = hub.list("list the members", &path).await.ok()?;
    let candidate = |member: &MemberCluster| {
        let connected = if member.condition(ConditionType::Connected).is_true() {
            "connected"
        } else {
            "not connected"
        };
        let labels: Option<&BTreeMap<_, _>> = member.metadata.labels.as_ref();
        let about = format!("{connected} {}", labels_text(labels));
        Candidate::new(format!("{}{after}", member_name(member)), about.trim_end())
    };
    Some(found.iter().map(candidate).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    fn owned(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    /// The words that the definition offers.
    fn asked(words: &[&str]) -> Vec<String> {
        let (last, before) = words.split_last().unwrap();
        let mut found = candidates(&Cli::command(), &owned(before), last);
        found.sort();
        found.into_iter().map(|candidate| candidate.word).collect()
    }

    fn names_of(words: &[&str]) -> Option<Names> {
        let (last, before) = words.split_last().unwrap();
        names(&Cli::command(), &owned(before), last)
    }

    #[test]
    fn commands_flags_and_values_are_offered() {
        assert_eq!(asked(&["exp"]), ["explain"]);
        assert_eq!(asked(&["un"]), ["uninstall", "unjoin"]);
        assert!(
            asked(&[""]).contains(&"doctor".to_owned())
                && !asked(&[""]).contains(&"__complete".to_owned())
        );
        assert_eq!(asked(&["uninstall", "--cop"]), ["--copies"]);
        assert_eq!(asked(&["uninstall", "--copies", ""]), ["delete", "keep"]);
        assert_eq!(asked(&["status", "-o", "j"]), ["json", "jsonpath="]);
        assert_eq!(
            asked(&["import", "--from", "re"]),
            ["reflector", "replicator"]
        );
        assert_eq!(
            (asked(&["pl"]), asked(&["plan", "--dry-run", ""])),
            (vec!["plan".into()], vec!["members".into()])
        );
        assert_eq!(asked(&["completion", "k"]), ["kubectl"]);
        assert!(asked(&["join", "--kubec"]).contains(&"--kubeconfig".to_owned()));
        assert!(asked(&["join", "--label", ""]).is_empty());
    }

    #[test]
    fn candidates_are_described_on_one_line() {
        let root = Cli::command();
        for words in [&["st"][..], &["uninstall", "--cop"], &["completion", "b"]] {
            let (last, before) = words.split_last().unwrap();
            let found = candidates(&root, &owned(before), last);
            let about: Vec<_> = found.iter().map(|one| one.about.as_str()).collect();
            assert!(
                !about.is_empty() && about.iter().all(|about| !about.is_empty()),
                "{found:?}"
            );
            assert!(!about.concat().contains('\n'), "{found:?}");
        }
        let answer = answer(&root, &owned(&["exp"]));
        assert!(
            answer.starts_with("explain\tExplain") && answer.ends_with("\n:4\n"),
            "{answer}"
        );
    }

    #[test]
    fn names_follow_commands_and_flags() {
        assert_eq!(names_of(&["status", ""]), Some(Names::Rules));
        assert_eq!(names_of(&["-n", "shop", "wait", "se"]), Some(Names::Rules));
        assert_eq!(
            names_of(&["wait", "--timeout", "5m", ""]),
            Some(Names::Rules)
        );
        assert_eq!(names_of(&["status", "settings", ""]), None);
        assert_eq!(names_of(&["unjoin", ""]), Some(Names::Members));
        assert_eq!(names_of(&["explain", "eu"]), Some(Names::CopyClusters));
        assert_eq!(names_of(&["status", "-n", ""]), Some(Names::Namespaces));
        assert_eq!(
            names_of(&["join", "--hub-context", ""]),
            Some(Names::Contexts)
        );
        assert_eq!(names_of(&["status", "--user", ""]), Some(Names::Users));
        assert_eq!(names_of(&["status", "-o", ""]), None);
        assert_eq!(names_of(&["status", "-"]), None);
        assert_eq!(names_of(&[""]), None);
    }

    #[test]
    fn flags_of_an_unfinished_line_lead_to_the_hub() {
        let root = Cli::command();
        let words = [
            "--kubeconfig",
            "k",
            "status",
            "-n",
            "shop",
            "--context=eu",
            "--as",
            "eve",
        ];
        let access = Access::of(&root, &owned(&words));
        assert_eq!(access.kubeconfig, Some("k".into()));
        assert_eq!(access.context.as_deref(), Some("eu"));
        assert_eq!(access.namespace.as_deref(), Some("shop"));
        assert_eq!(access.connection.as_user.as_deref(), Some("eve"));
        // `explain` lacks its copy, and `unjoin` has the context of the member.
        let access = Access::of(&root, &owned(&["explain", "--context", "eu"]));
        assert_eq!(access.context.as_deref(), Some("eu"));
        let words = ["unjoin", "--context", "member", "--hub-context", "hub"];
        let access = Access::of(&root, &owned(&words));
        assert_eq!(access.context.as_deref(), Some("hub"));
    }

    #[test]
    fn unreachable_hub_offers_no_names() {
        let access = Access {
            kubeconfig: Some("/does/not/exist".into()),
            ..Access::default()
        };
        for names in [Names::Rules, Names::Members, Names::Contexts] {
            assert_eq!(lookup(&access, names, ""), None, "{names:?}");
        }
        let slow = within_limit(|| {
            std::thread::park_timeout(Duration::from_secs(60));
            Some(vec![Candidate::plain("late")])
        });
        assert_eq!(slow, []);
    }
}
