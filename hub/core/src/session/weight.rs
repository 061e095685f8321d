//! How large things are on the wire.
use runnel_proto::model::{NamespaceChoice, Terms};

/// About how many bytes terms take on the wire.
pub(super) fn weight(terms: &Terms) -> usize {
    let granted = terms
        .grants
        .iter()
        .flatten()
        .filter_map(|grant| grant.namespaces.as_ref());
    let choices = terms
        .namespaces
        .iter()
        .chain(granted)
        .map(choice_weight)
        .sum::<usize>();
    let names = terms.rule.kind.len() + terms.rule.namespace.len() + terms.rule.name.len();
    choices + terms.grants.as_ref().map_or(0, |grants| 64 * grants.len()) + names + 64
}

fn choice_weight(choice: &NamespaceChoice) -> usize {
    let patterns = choice
        .names
        .iter()
        .chain(&choice.exclude)
        .map(|pattern| pattern.as_str().len() + 2);
    let requirements = choice
        .selector
        .iter()
        .flat_map(|selector| &selector.requirements);
    let requirements = requirements
        .map(|r| r.key.len() + r.values.iter().map(|value| value.len() + 2).sum::<usize>() + 8);
    patterns.sum::<usize>() + requirements.sum::<usize>()
}
