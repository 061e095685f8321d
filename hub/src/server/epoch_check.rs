//! How far the agent of one session may follow this hub.
use runnel_hub_core::epoch::{Divergence, HistoryToken, TokenRecipient};
use runnel_hub_core::session::{SendRestriction, Session};
use runnel_proto::model::{HubFrame, RuleDelta};

/// How far the agent may follow this hub, and which history token it gets.
#[derive(Debug)]
pub(super) struct EpochCheck {
    /// The history token that the agent sent.
    pub(super) history_token: Option<HistoryToken>,
    /// The recipient of the tokens that this session gives.
    pub(super) recipient: TokenRecipient,
    /// Why the agent may not follow this hub in everything.
    pub(super) divergence: Option<Divergence>,
    /// The number of rules of which removals were withheld in a cluster that joined again.
    pub(super) withheld_rules: usize,
    /// Whether the agent gets a token at the end of the snapshot even if nothing changed.
    pub(super) sends_history_token: bool,
}

impl EpochCheck {
    /// Creates the check of a session whose agent sent `history_token`.
    pub(super) fn new(history_token: Option<HistoryToken>) -> Self {
        Self {
            history_token,
            recipient: TokenRecipient::new("", ""),
            divergence: None,
            withheld_rules: 0,
            sends_history_token: false,
        }
    }

    /// Returns what the session must not send.
    pub(super) fn restriction(&self) -> SendRestriction {
        self.divergence
            .as_ref()
            .map_or(SendRestriction::Nothing, Divergence::restriction)
    }

    /// Whether a token is sent with `frame`.
    pub(super) fn sends_token_with(&self, frame: &HubFrame) -> bool {
        match frame {
            // Each stream repeats that a rule is unknown, so that is no change of this hub.
            HubFrame::Batch(batch) => batch.rules.iter().any(|delta| !is_only_orphaned(delta)),
            HubFrame::SnapshotEnd(_) => self.sends_history_token,
            _ => false,
        }
    }

    /// The recipient of a token, or none where the agent gets no token.
    ///
    /// A cluster that joined again keeps its former recipient until its divergence is settled.
    pub(super) fn recipient_of_token(&self) -> Option<TokenRecipient> {
        match &self.divergence {
            None => Some(self.recipient),
            Some(Divergence::PreviousMembership { .. }) => {
                self.history_token.as_ref().map(|token| token.to)
            }
            Some(_) => None,
        }
    }

    /// Ends the restriction of a cluster that joined again, if no removal was withheld. Returns
    /// whether it did.
    pub(super) fn end_if_nothing_withheld(&mut self, session: &Session) -> bool {
        let ends = matches!(self.divergence, Some(Divergence::PreviousMembership { .. }))
            && self.withheld_rules == 0
            && session.has_only_desired_intents();
        if ends {
            (self.divergence, self.sends_history_token) = (None, true);
        }
        ends
    }
}

/// Whether the delta contains only that the hub does not know the rule.
fn is_only_orphaned(delta: &RuleDelta) -> bool {
    let changes_terms = delta.terms.is_some() || delta.prune.is_some();
    let changes_copies =
        !delta.upserts.is_empty() || !delta.tombstones.is_empty() || delta.removal.is_some();
    delta.orphaned && !changes_terms && !changes_copies
}
