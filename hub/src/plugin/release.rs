//! `kubectl runnel release`: what is held is carried out, exactly as it was shown: removals and takeovers alike.
use std::io::{BufRead, IsTerminal, Write};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::access::Cluster;
use super::args::Release;
use super::ask::{self, Held, Question};
use super::limit;
use super::look::rule_path;
use super::seen::{condition, full_name, number, text};
use super::{FAILED, IN_VAIN, Session, ended, say, status, usage};
use crate::crd::RELEASE;

const BETWEEN: Duration = Duration::from_millis(250);
/// What a person reads before he answers; the rest is counted.
const SHOWN: usize = 200;

/// Shows what is held of a rule and releases it.
pub(super) async fn run(session: &Session<'_>, options: &Release) -> anyhow::Result<()> {
    let timeout = limit::duration("--timeout", &options.timeout).map_err(usage)?;
    let hub = session.hub().await?;
    let namespace = session.namespace.unwrap_or(&hub.default_namespace);
    for (flag, name) in [("--namespace", namespace), ("--hub-namespace", options.hub_namespace.as_str())] {
        if !limit::is_name(name) {
            return Err(usage(format!("{flag} `{name}` is no name")));
        }
    }
    let rule = status::one(&hub, &options.rule, namespace).await?;
    let held = held_of(&rule);
    if held.is_empty() {
        return Err(ended(FAILED, format!("nothing of rule {} is held", full_name(&rule))));
    }
    let question = Question { namespace: &options.hub_namespace, address: options.hub_url.as_deref(), rule: &rule };
    let (digest, copies) = match ask::held(&hub, &question).await {
        Ok(Some(held)) => {
            say(&table(&held))?;
            (held.digest, held.copies)
        }
        Ok(None) => return Err(ended(FAILED, format!("nothing of rule {} is held any more", full_name(&rule)))),
        Err(why) => {
            eprintln!("warning: the hub could not be asked for all of it ({why}); this is what the status says");
            for (name, _) in &held {
                let message = condition(&rule, name).message.split(". To ").next().unwrap_or_default();
                say(&format!("{message}\n"))?;
            }
            let digests: Vec<_> = held.iter().map(|(_, path)| text(&rule, &format!("{path}/digest"))).collect();
            (digests.join(","), held.iter().map(|(_, path)| number(&rule, &format!("{path}/copies"))).sum())
        }
    };
    // What is overwritten is a copy from then on.
    let copies = if copies == 1 { "1 copy".to_owned() } else { format!("{copies} copies") };
    let (question, done) = match held[..] {
        [(TAKEOVER_HELD, _)] => ("Overwrite these objects, to make them", "being made of what is overwritten"),
        [(DELETION_HELD, _)] => ("Remove these", "being removed"),
        _ => ("Remove and overwrite all of this, in all", "being removed, or made of what is overwritten"),
    };
    if !options.yes && !is_confirmed(&format!("{question} {copies} of rule {}?", full_name(&rule)))? {
        return Err(ended(FAILED, "nothing was released"));
    }
    let path = rule_path(&rule);
    hub.patch("release what is held", &path, json!({"metadata": {"annotations": {RELEASE: digest}}})).await?;
    let heeded = heeded(&hub, &path, &digest, timeout).await?;
    match heeded {
        Heeded::Gone => say(&format!("Released: {copies} are {done}.\n")),
        Heeded::Other => Err(ended(
            FAILED,
            "what is held has changed meanwhile, so nothing was released: `kubectl runnel release` again shows it",
        )),
        Heeded::No => Err(ended(
            IN_VAIN,
            format!(
                "the annotation {RELEASE} is written, and the hub has not heeded it within {}: `kubectl runnel doctor` says \
                 whether it runs",
                limit::words(timeout)
            ),
        )),
    }
}

const DELETION_HELD: &str = "DeletionHeld";
const TAKEOVER_HELD: &str = "TakeoverHeld";

/// The conditions by which something of a rule is held, and where its status names that.
fn held_of(rule: &Value) -> Vec<(&'static str, &'static str)> {
    let all = [(DELETION_HELD, "/status/removal"), (TAKEOVER_HELD, "/status/takeovers")];
    all.into_iter().filter(|(name, _)| condition(rule, name).holds()).collect()
}

enum Heeded {
    /// The set goes.
    Gone,
    /// Another set is held than the one that was shown.
    Other,
    /// Nothing has happened.
    No,
}

async fn heeded(hub: &Cluster, path: &str, digest: &str, timeout: Duration) -> anyhow::Result<Heeded> {
    let begin = Instant::now();
    loop {
        let Some(rule) = hub.get("read the rule", path).await? else { return Ok(Heeded::Gone) };
        let held = held_of(&rule);
        // What is held as it was named is still to be heeded.
        let is_named = |(_, path): &(&str, &str)| {
            let held = text(&rule, &format!("{path}/digest"));
            digest.split(',').any(|named| named == held)
        };
        match () {
            () if held.is_empty() => return Ok(Heeded::Gone),
            // Whatever was held beyond it when the hub looked is another set.
            () if !held.iter().all(is_named) && begin.elapsed() >= Duration::from_secs(3) => return Ok(Heeded::Other),
            () if begin.elapsed() >= timeout => return Ok(Heeded::No),
            () => tokio::time::sleep(BETWEEN).await,
        }
    }
}

/// What goes, line by line.
fn table(held: &Held) -> String {
    let mut said: String = held.items.iter().take(SHOWN).map(line).collect();
    if held.items.len() > SHOWN {
        said += &format!("  and {} more\n", held.items.len() - SHOWN);
    }
    match held.items.is_empty() {
        true => "The hub restarted, and the agents have not said yet what is left of what it held.\n".to_owned(),
        false => format!("What is held and would go:\n{said}"),
    }
}

fn line([what, cluster, object]: &[String; 3]) -> String {
    match what.as_str() {
        "Rule" => "  all copies: the rule is deleted\n".to_owned(),
        "Cluster" => format!("  all copies in {cluster}: no longer chosen, or not granted\n"),
        "Kind" => format!("  all {object} in {cluster}: no longer granted\n"),
        "Copy" => format!("  {object} in {cluster}: another name now\n"),
        "Name" => format!("  {object} everywhere: another name now\n"),
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
    eprint!("{question} [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
