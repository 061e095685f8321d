//! `kubectl runnel release`: what is held is carried out, exactly as it was shown: removals, also in namespaces given up, and takeovers alike.
use std::collections::BTreeSet;
use std::io::{BufRead, IsTerminal, Write};
use std::time::{Duration, Instant};

use runnel_proto::model::is_subdomain;
use serde_json::{Value, json};

use super::access::Cluster;
use super::args::Release;
use super::ask::{self, PendingApproval, RuleQuery};
use super::limit;
use super::look::rule_path;
use super::observed_json::{condition_named, full_name, number, text};
use super::wrap::printable;
use super::{CommandContext, FAILED, IN_VAIN, ended, note, say, status, usage};
use runnel_api::RELEASE;

const BETWEEN: Duration = Duration::from_millis(250);
/// What a person reads before he answers; the rest is counted.
const SHOWN: usize = 200;

/// Shows what is held of a rule and releases it.
pub(super) async fn run(session: &CommandContext<'_>, options: &Release) -> anyhow::Result<()> {
    let timeout = limit::duration("--timeout", &options.timeout).map_err(usage)?;
    let hub = session.hub().await?;
    let namespace = session.namespace.unwrap_or(&hub.default_namespace);
    for (flag, name) in [("--namespace", namespace), ("--hub-namespace", options.hub_namespace.as_str())] {
        if !is_subdomain(name) {
            return Err(usage(format!("{flag} `{name}` is no name")));
        }
    }
    let rule = status::one(&hub, &options.rule, namespace).await?;
    let held = held_of(&rule);
    if held.is_empty() {
        return Err(ended(FAILED, format!("nothing of rule {} is held", full_name(&rule))));
    }
    let question = RuleQuery { namespace: &options.hub_namespace, address: options.hub_url.as_deref(), rule: &rule };
    let (digest, copies, sorts) = match ask::held(&hub, &question).await {
        Ok(Some(answer)) => {
            say(&table(&answer))?;
            let sorts = sorts(&answer).unwrap_or_else(|| Sorts::of_conditions(&held));
            (answer.digest, answer.copies, sorts)
        }
        Ok(None) => return Err(ended(FAILED, format!("nothing of rule {} is held any more", full_name(&rule)))),
        Err(why) => {
            note(&format!("warning: the hub could not be asked for all of it ({why}); this is what the status says"));
            let names: BTreeSet<_> = held.iter().map(|(name, _)| *name).collect();
            for name in names {
                let message = condition_named(&rule, name).message.split(". To ").next().unwrap_or_default();
                say(&format!("{message}\n"))?;
            }
            let digests: Vec<_> = held.iter().map(|(_, path)| text(&rule, &format!("{path}/digest"))).collect();
            let copies = held.iter().map(|(_, path)| number(&rule, &format!("{path}/copies"))).sum();
            (digests.join(","), copies, Sorts::of_conditions(&held))
        }
    };
    // What is overwritten is a copy from then on.
    let copies = if copies == 1 { "1 copy".to_owned() } else { format!("{copies} copies") };
    let (question, done) = match sorts {
        Sorts::Takeovers => ("Overwrite these objects, to make them", "being made of what is overwritten"),
        Sorts::Removals => ("Remove these", "being removed"),
        Sorts::Both => ("Remove and overwrite all of this, in all", "being removed, or made of what is overwritten"),
    };
    if !options.yes && !is_confirmed(&format!("{question} {copies} of rule {}?", full_name(&rule)))? {
        return Err(ended(FAILED, "nothing was released"));
    }
    let path = rule_path(&rule);
    hub.patch("release what is held", &path, json!({"metadata": {"annotations": {RELEASE: digest}}})).await?;
    let heeded = heeded(&hub, &path, &digest, timeout).await?;
    match heeded {
        Heeded::Gone => say(&format!("Released: {copies} are {done}.\n")),
        Heeded::Other(released) => Err(ended(
            FAILED,
            format!(
                "what is held has changed meanwhile, so {}: `kubectl runnel release` again shows it",
                released.map_or_else(|| "nothing was released".to_owned(), |part| format!("only {part} was released")),
            ),
        )),
        Heeded::No(released) => Err(ended(
            IN_VAIN,
            format!(
                "the annotation {RELEASE} is written, and {} within {}: `kubectl runnel doctor` says whether the hub runs",
                match released {
                    None => "the hub has not heeded it".to_owned(),
                    Some(part) => format!("only {part} was released"),
                },
                limit::words(timeout)
            ),
        )),
    }
}

const DELETION_HELD: &str = "DeletionHeld";
const TAKEOVER_HELD: &str = "TakeoverHeld";

/// The conditions by which something of a rule is held, and where its status names that.
fn held_of(rule: &Value) -> Vec<(&'static str, &'static str)> {
    let all =
        [(DELETION_HELD, "/status/removal"), (DELETION_HELD, "/status/givenUp"), (TAKEOVER_HELD, "/status/takeovers")];
    let is_held = |path: &str| rule.pointer(path).is_some_and(|held| held["released"] != true);
    all.into_iter().filter(|(name, path)| condition_named(rule, name).holds() && is_held(path)).collect()
}

/// What is released: it is what people are asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sorts {
    Removals,
    Takeovers,
    Both,
}

impl Sorts {
    fn of(removals: bool, takeovers: bool) -> Option<Self> {
        match (removals, takeovers) {
            (true, true) => Some(Self::Both),
            (true, false) => Some(Self::Removals),
            (false, true) => Some(Self::Takeovers),
            (false, false) => None,
        }
    }

    fn of_conditions(held: &[(&str, &str)]) -> Self {
        let holds = |name| held.iter().any(|(held, _)| *held == name);
        Self::of(holds(DELETION_HELD), holds(TAKEOVER_HELD)).unwrap_or(Self::Both)
    }
}

/// The sorts of what the hub says is held, which may be another than the status said a moment ago; `None` where it cannot
/// tell yet.
fn sorts(held: &PendingApproval) -> Option<Sorts> {
    if held.items.is_empty() {
        return None;
    }
    let has = |is_it: fn(&str) -> bool| held.items.iter().any(|[what, ..]| is_it(what));
    let (takeovers, given_up) = (has(|what| what == "Takeover"), has(|what| what == "GivenUp"));
    let removal = has(|what| !matches!(what, "Takeover" | "GivenUp"));
    // Each of these has a digest: where fewer have been named, the hub cannot tell of the others yet.
    let named = [takeovers, given_up, removal].into_iter().filter(|is_named| *is_named).count();
    let unknown = held.digest.split(',').count() > named;
    Sorts::of(given_up || removal || unknown, takeovers || unknown)
}

#[derive(Debug, PartialEq, Eq)]
enum Heeded {
    /// All of it goes.
    Gone,
    /// Another set is held than the one that was shown; what was released of it all the same.
    Other(Option<&'static str>),
    /// Nothing has happened, or only this.
    No(Option<&'static str>),
}

async fn heeded(hub: &Cluster, path: &str, digest: &str, timeout: Duration) -> anyhow::Result<Heeded> {
    let begin = Instant::now();
    loop {
        let Some(rule) = hub.get("read the rule", path).await? else { return Ok(Heeded::Gone) };
        match seen(&rule, digest) {
            Heeded::Gone => return Ok(Heeded::Gone),
            // Whatever was held beyond it when the hub looked is another set.
            Heeded::Other(released) if begin.elapsed() >= Duration::from_secs(3) => {
                return Ok(Heeded::Other(released));
            }
            Heeded::Other(released) | Heeded::No(released) if begin.elapsed() >= timeout => {
                return Ok(Heeded::No(released));
            }
            Heeded::Other(_) | Heeded::No(_) => tokio::time::sleep(BETWEEN).await,
        }
    }
}

/// How far a rule's status is with these digests.
fn seen(rule: &Value, digests: &str) -> Heeded {
    let names = |path: &str, field: &str| {
        let digest = text(rule, &format!("{path}/{field}"));
        digests.split(',').any(|named| named == digest)
    };
    let is_named = |path: &str| names(path, "digest");
    let held = held_of(rule);
    if held.is_empty() {
        return Heeded::Gone;
    }
    let released = [
        ("the removal", "/status/removal"),
        ("the removal in namespaces given up", "/status/givenUp"),
        ("the overwriting", "/status/takeovers"),
    ];
    let is_released = |path| rule.pointer(&format!("{path}/released")) == Some(&Value::Bool(true)) && is_named(path);
    let released = released.into_iter().find(|(_, path)| is_released(path)).map(|(part, _)| part);
    // What is held now came after that, or is what had changed of it.
    let released =
        if held.iter().any(|(_, path)| names(path, "previous")) { Some("what had not changed") } else { released };
    // What is held as it was named is still to be heeded.
    if held.iter().all(|(_, path)| is_named(path)) { Heeded::No(released) } else { Heeded::Other(released) }
}

/// What goes, line by line.
fn table(held: &PendingApproval) -> String {
    let mut said: String = held.items.iter().take(SHOWN).map(line).collect();
    if held.items.len() > SHOWN {
        said += &format!("  and {} more\n", held.items.len() - SHOWN);
    }
    let beyond = held.copies - overwritten(held).unwrap_or(held.copies);
    if beyond > 0 {
        said +=
            &format!("  and {beyond} more that were held before the hub restarted, of which no agent has spoken yet\n");
    }
    if held.items.is_empty() {
        "The hub restarted, and the agents have not said yet what is left of what it held.\n".to_owned()
    } else {
        format!("What is held and would go:\n{said}")
    }
}

/// How many objects are listed, where only takeovers are.
fn overwritten(held: &PendingApproval) -> Option<i64> {
    let objects = |[what, _, objects]: &[String; 3]| objects.parse::<i64>().ok().filter(|_| what == "Takeover");
    held.items.iter().map(objects).sum::<Option<i64>>().filter(|_| !held.digest.contains(','))
}

fn line([what, cluster, object]: &[String; 3]) -> String {
    match what.as_str() {
        "Rule" => "  all copies: the rule is deleted\n".to_owned(),
        "Cluster" => format!("  all copies in {cluster}: no longer chosen, or not granted\n"),
        "Kind" => format!("  all {object} in {cluster}: no longer granted\n"),
        "Copy" => format!("  {object} in {cluster}: another name now\n"),
        "Name" => format!("  {object} everywhere: another name now\n"),
        "GivenUp" => {
            let (copies, namespaces) = object.split_once(' ').unwrap_or((object, ""));
            let copies = if copies == "1" { "1 copy".to_owned() } else { format!("{copies} copies") };
            format!("  {copies} in {cluster}: in namespaces given up {namespaces}\n")
        }
        "Takeover" if object == "1" => format!("  1 object in {cluster} that is not Runnel's: overwritten\n"),
        "Takeover" => format!("  {object} objects in {cluster} that are not Runnel's: overwritten\n"),
        "Source" => format!("  {object} everywhere: no longer selected\n"),
        other => format!("  {other} {object} {cluster}\n"),
    }
}

/// Asks a person. Without one there is no answer.
fn is_confirmed(question: &str) -> anyhow::Result<bool> {
    if !std::io::stdin().is_terminal() {
        return Err(usage("there is nobody to ask: --yes releases what is shown"));
    }
    eprint!("{} [y/N] ", printable(question));
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(removal: Option<(&str, bool)>, takeovers: Option<(&str, bool)>) -> Value {
        let status = |memory: Option<(&str, bool)>| {
            memory.map(|(digest, released)| json!({"digest": digest, "copies": 3, "released": released}))
        };
        let condition = |name: &str, memory: Option<(&str, bool)>| {
            let held = memory.is_some_and(|(_, released)| !released);
            json!({"type": name, "status": if held { "True" } else { "False" }})
        };
        let conditions = [condition(DELETION_HELD, removal), condition(TAKEOVER_HELD, takeovers)];
        json!({"status": {"conditions": conditions, "removal": status(removal), "takeovers": status(takeovers)}})
    }

    #[test]
    fn what_was_released_is_told_from_what_was_not() {
        let mut rest = rule(None, Some(("t2", false)));
        rest["status"]["takeovers"]["previous"] = json!("t1");
        assert_eq!(seen(&rest, "d1,t1"), Heeded::Other(Some("what had not changed")));
        assert_eq!(seen(&rest, "t0"), Heeded::Other(None));
        let seen = |removal, takeovers| seen(&rule(removal, takeovers), "d1,t1");
        assert_eq!(seen(Some(("d1", false)), Some(("t1", false))), Heeded::No(None));
        assert_eq!(seen(Some(("d1", true)), Some(("t1", true))), Heeded::Gone);
        assert_eq!(seen(None, None), Heeded::Gone);
        assert_eq!(seen(Some(("d1", true)), Some(("t2", false))), Heeded::Other(Some("the removal")));
        assert_eq!(seen(Some(("d2", false)), Some(("t1", true))), Heeded::Other(Some("the overwriting")));
        assert_eq!(seen(Some(("d1", true)), Some(("t1", false))), Heeded::No(Some("the removal")));
        assert_eq!(seen(Some(("d2", false)), Some(("t2", false))), Heeded::Other(None));
        let mut part = rule(None, Some(("t2", false)));
        part["status"]["givenUp"] = json!({"digest": "g1", "copies": 3, "released": true});
        let said = Heeded::Other(Some("the removal in namespaces given up"));
        assert_eq!(super::seen(&part, "g1,t1"), said);
        // Released long ago.
        assert_eq!(seen(Some(("d0", true)), Some(("t2", false))), Heeded::Other(None));
    }

    fn held(digest: &str, copies: i64, items: &[(&str, &str)]) -> PendingApproval {
        let item = |(what, object): &(&str, &str)| [(*what).to_owned(), "eu-1".to_owned(), (*object).to_owned()];
        PendingApproval { digest: digest.to_owned(), copies, items: items.iter().map(item).collect() }
    }

    #[test]
    fn blocked_sets_are_listed_with_what_the_hub_cannot_list() {
        let (removal, takeovers) = (("Source", "configmaps/a/s"), ("Takeover", "12"));
        assert_eq!(sorts(&held("t", 12, &[takeovers])), Some(Sorts::Takeovers));
        assert_eq!(sorts(&held("d", 12, &[removal])), Some(Sorts::Removals));
        assert_eq!(sorts(&held("d,t", 24, &[removal, takeovers])), Some(Sorts::Both));
        assert_eq!(sorts(&held("d,t", 24, &[takeovers])), Some(Sorts::Both), "the removal is not spoken of yet");
        let given_up = ("GivenUp", "12 (a)");
        assert_eq!(sorts(&held("d,g", 24, &[removal, given_up])), Some(Sorts::Removals));
        assert_eq!(sorts(&held("g,t", 24, &[given_up, takeovers])), Some(Sorts::Both));
        assert_eq!(sorts(&held("d", 12, &[])), None);
        assert!(table(&held("t", 20, &[takeovers])).contains("and 8 more that were held before the hub restarted"));
        for whole in [held("t", 12, &[takeovers]), held("d", 12, &[removal]), held("d,t", 24, &[removal, takeovers])] {
            assert!(!table(&whole).contains("restarted"));
        }
    }
}
