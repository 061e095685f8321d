//! Makes what is sent out of what a rule selects.
use std::sync::Arc;

use runnel_proto::model::SourceRef;

use super::made::{Made, Outcome};
use super::{Body, Rule, RulePlan};

/// What of one rule is sent.
#[derive(Default)]
pub enum Deal {
    /// Just what is selected.
    #[default]
    AsSelected,
    /// What no two sources want.
    Made(Box<Made>),
}

impl Deal {
    /// What is sent of this selection.
    pub fn new(rule: &Rule, selection: &RulePlan) -> Self {
        if !rule.may_collide() {
            return Self::AsSelected;
        }
        let mut deal = Self::Made(Made::nothing(selection).into());
        for source in selection.selected() {
            deal.update(source, selection.body(source).as_ref());
        }
        deal
    }

    /// A source has become something else to the rule.
    pub fn update(&mut self, source: &SourceRef, body: Option<&Body>) {
        if let Self::Made(made) = self {
            made.set(source, body, body.and_then(|body| outcome(source, body)));
        }
    }

    /// What is sent.
    pub fn plan<'a>(&'a self, selection: &'a Arc<RulePlan>) -> &'a Arc<RulePlan> {
        match self {
            Self::AsSelected => selection,
            Self::Made(made) => &made.plan,
        }
    }

    /// Whether two send the same.
    pub fn says_the_same(&self, other: &Deal) -> bool {
        match (self, other) {
            (Self::AsSelected, Self::AsSelected) => true,
            (Self::Made(one), Self::Made(two)) => one.plan.says_the_same(&two.plan),
            _ => false,
        }
    }
}

fn outcome(source: &SourceRef, body: &Body) -> Option<Outcome> {
    let name = source.name.clone();
    match body {
        Body::Refused(_) => None,
        Body::Unread | Body::Unreadable => Some(Outcome { name, content: None }),
        Body::Read(content) | Body::Stale(content) => Some(Outcome { name, content: Some(content.clone()) }),
    }
}
