//! How a session comes to know what the agent holds of a rule: by an account that equals the share, or by asking.
use std::collections::BTreeMap;

use runnel_proto::model::{HeldIntent, RuleUid};

use super::held::{Held, Items};
use super::{Session, TooMuch};
use crate::plan::Share;

impl Session {
    /// Whether the hub knows, source by source, what the agent holds of a rule. If not, an account that equals the share
    /// settles it, and otherwise the agent is asked.
    pub(super) fn knows_items(&mut self, uid: &RuleUid, share: &Share) -> bool {
        let Some(held) = self.rules.get_mut(uid) else { return false };
        match &held.items {
            Items::Pairs(_) | Items::Share { .. } => return true,
            Items::Asked(_) => {}
            Items::Digest { digest, .. } if *digest == share.digest() => {
                held.items = Items::exactly(share.clone());
                held.former = false;
                self.serve_wants(uid);
            }
            // An account that matches nothing yet, and may still.
            Items::Digest { .. } if share.is_growing() => {}
            Items::Digest { .. } | Items::Uncertain => {
                held.items = Items::Asked(BTreeMap::new());
                self.ask.insert(uid.clone());
            }
        }
        false
    }

    /// The rules whose pairs the agent must be asked for now.
    pub fn take_questions(&mut self) -> Vec<RuleUid> {
        std::mem::take(&mut self.ask).into_iter().collect()
    }

    /// The agent's pairs of one rule, for which it was asked.
    ///
    /// # Errors
    /// [`TooMuch`], when it says more than the session keeps: the session must end, as the rest would be lost.
    pub fn detail(&mut self, uid: &RuleUid, intents: Vec<HeldIntent>, last: bool) -> Result<(), TooMuch> {
        if !matches!(self.rules.get(uid), Some(Held { items: Items::Asked(_), .. })) {
            return Ok(());
        }
        self.afford(intents.iter().map(|intent| &intent.source))?;
        let Some(held) = self.rules.get_mut(uid) else { return Ok(()) };
        let Items::Asked(pairs) = &mut held.items else { return Ok(()) };
        pairs.extend(intents.into_iter().map(|intent| (intent.source, intent.revision)));
        if !last {
            return Ok(());
        }
        held.items = Items::Pairs(std::mem::take(pairs));
        if let Some(claim) = held.claim.clone() {
            self.reconcile(uid, claim);
        }
        Ok(())
    }
}
