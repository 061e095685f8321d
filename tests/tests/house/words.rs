//! Conditions, reasons and Events are closed lists: the manual has each word of the code, the code each of the manual, and
//! nothing writes a word that is not of the lists.
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, ensure};
use runnel_api::conditions::{ConditionType, Reason};
use runnel_proto::model;

use super::{contains_word, none, product_code, root};

/// The file that defines conditions, with their types and reasons.
const LISTS: &str = "hub/api/src/conditions.rs";

/// The page of the manual that explains them.
const PAGE: &str = "deploy/manual/src/reference/conditions.md";

/// The table of the manual with this heading of its first column: its words, and the objects of
/// each.
fn table(heading: &str) -> Result<BTreeMap<String, String>> {
    let page = fs::read_to_string(root().join(PAGE))?;
    let (_, rows) = page
        .split_once(&format!("\n| {heading} |"))
        .with_context(|| format!("no table {heading}"))?;
    let mut table = BTreeMap::new();
    for row in rows.lines().skip(2).take_while(|row| row.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        ensure!(
            cells.len() == 5 && !cells[3].is_empty(),
            "a row of {heading} is not whole: {row}"
        );
        let word = cells[1].trim_matches('`').to_owned();
        ensure!(
            table.insert(word, cells[2].to_owned()).is_none(),
            "twice in the table {heading}: {row}"
        );
    }
    Ok(table)
}

/// Both are equal.
fn compare(heading: &str, of_code: impl Iterator<Item = &'static str>) -> Result<()> {
    let (of_manual, of_code) = (table(heading)?, of_code.collect::<BTreeSet<_>>());
    let lacks = of_code
        .iter()
        .filter(|word| !of_manual.contains_key(**word));
    let lacks =
        lacks.map(|word| format!("{PAGE}, table {heading}: lacks {word}: say what it means"));
    let surplus = of_manual
        .keys()
        .filter(|word| !of_code.contains(word.as_str()));
    let surplus =
        surplus.map(|word| format!("{PAGE}, table {heading}: nothing writes {word}: remove it"));
    none(lacks.chain(surplus).collect())
}

#[test]
fn manual_lists_exactly_the_conditions_reasons_and_events() -> Result<()> {
    compare(
        "condition",
        ConditionType::ALL.into_iter().map(ConditionType::as_str),
    )?;
    compare("reason", Reason::all().map(Reason::as_str))?;
    let of_hub = runnel_hub_core::status::EventReason::OWN
        .into_iter()
        .map(|reason| reason.as_str());
    let of_agent = runnel_agent::events::EventReason::OWN
        .into_iter()
        .map(|reason| reason.as_str());
    compare("Event", of_hub.chain(of_agent))
}

#[test]
fn manual_marks_the_reasons_of_agents() -> Result<()> {
    for (word, of) in table("reason")? {
        let of_copies = model::Reason::all().any(|reason| reason.as_str() == word);
        ensure!(
            of.split(", ").any(|one| one == "copy") == of_copies,
            "{word}: an agent says it: {of_copies}; of: {of}"
        );
    }
    Ok(())
}

#[test]
fn words_of_different_lists_are_different() -> Result<()> {
    let mut seen = BTreeSet::new();
    let twice: Vec<String> = Reason::all()
        .map(|reason| reason.as_str().to_owned())
        .filter(|word| !seen.insert(word.clone()))
        .collect();
    ensure!(twice.is_empty(), "reasons that two lists have: {twice:?}");
    Ok(())
}

/// A word that no code takes from its list is superfluous, in the code as in the manual.
#[test]
fn every_word_of_the_lists_is_written_somewhere() -> Result<()> {
    let mut text = String::new();
    for file in product_code()?.iter().filter(|file| file.path != LISTS) {
        file.lines
            .iter()
            .for_each(|(_, line)| text.extend([line.as_str(), "\n"]));
    }
    let types = ConditionType::ALL.map(|word| format!("ConditionType::{word}"));
    let reasons = Reason::OWN.map(|word| format!("Reason::{word}"));
    let events =
        runnel_hub_core::status::EventReason::OWN.map(|word| format!("EventReason::{word}"));
    let all = types.into_iter().chain(reasons).chain(events);
    none(
        all.filter(|word| !contains_word(&text, word))
            .map(|word| format!("nothing writes {word}: remove it"))
            .collect(),
    )
}

/// What would write a word that is of no list: conditions are made in one place, from the lists' types; reasons are never
/// spelled out. (The plugin only reads them.)
#[test]
fn conditions_and_reasons_come_from_the_lists() -> Result<()> {
    let spelled = |line: &str| {
        let fields = [
            "reason: \"",
            "reason = \"",
            "type_: \"",
            "reason: format!",
            "reason: String::from(\"",
        ];
        fields.iter().any(|field| line.contains(field)) && !line.contains("#[expect(")
    };
    let makes = |line: &str| {
        line.contains(" Condition {") && !line.contains("-> ") && !line.contains("struct ")
    };
    let mut wrong = Vec::new();
    for file in product_code()? {
        for (number, line) in &file.lines {
            if spelled(line) {
                wrong.push(format!(
                    "{}:{number}: a reason or type that is spelled out: take it of a list",
                    file.path
                ));
            }
            if makes(line) && file.path != LISTS && !file.path.starts_with("hub/plugin/src/") {
                wrong.push(format!(
                    "{}:{number}: a condition that is made by hand: use set_condition",
                    file.path
                ));
            }
        }
    }
    none(wrong)
}
