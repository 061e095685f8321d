//! Places become known or unknown, and with them what the rules that look there want.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::RuleUid;

use super::{Effect, Index};
use crate::plan::{Place, Rule};

/// What the hub can tell about a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PlaceState {
    /// No rule has needed it yet, or its watch has not delivered its first complete list.
    #[default]
    Unwatched,
    /// Its watch has delivered a complete list.
    Known,
    /// It cannot be watched, for the reason given to people.
    Unreadable(String),
}

impl Index {
    /// The state of a place. One in which the hub does not look cannot be read.
    pub fn place(&self, place: &Place) -> PlaceState {
        match &place.namespace {
            Some(namespace) if !self.scope.reads(namespace) => PlaceState::Unreadable(outside(namespace)),
            _ => self.places.get(place).cloned().unwrap_or_default(),
        }
    }

    /// A place became known or unknown. Plans that need it follow.
    pub fn set_place(&mut self, place: Place, state: PlaceState) -> Effect {
        let mut effect = Effect::default();
        if self.place(&place) == state {
            return effect;
        }
        let needing: Vec<RuleUid> = self
            .rules
            .iter()
            .filter(|(_, entry)| entry.rule.places(&self.scope).contains(&place))
            .map(|(uid, _)| uid.clone())
            .collect();
        self.places.insert(place, state);
        for uid in needing {
            self.replan(&uid, &mut effect);
            effect.rules.insert(uid);
        }
        effect
    }

    /// Places in which some rule looks for sources.
    pub fn needed_places(&self) -> BTreeSet<Place> {
        self.rules.values().flat_map(|entry| entry.rule.places(&self.scope)).collect()
    }

    /// The places that a rule needs and that cannot be read, with the reason given to people.
    pub fn unreadable_places(&self, rule: &Rule) -> BTreeMap<Place, String> {
        let places = rule.places(&self.scope).into_iter();
        let unreadable = places.filter_map(|place| match self.place(&place) {
            PlaceState::Unreadable(why) => Some((place, why)),
            PlaceState::Unwatched | PlaceState::Known => None,
        });
        unreadable.collect()
    }

    pub(super) fn is_known(&self, place: &Place) -> bool {
        self.place(place) == PlaceState::Known
    }
}

fn outside(namespace: &str) -> String {
    format!(
        "the hub looks for sources in other namespaces only: add {namespace} to `sourceNamespaces` of the hub's chart, or to --source-namespaces"
    )
}
