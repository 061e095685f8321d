//! What agents ask for, beside what the hub itself removes: see [`Named`].
use std::sync::Arc;
use std::time::{Duration, Instant};

use runnel_proto::model::{Asked, ClusterName};

use super::named::Question;
use super::{Brake, Circumstances, DELAY, Named};

impl Brake {
    /// The brake on takeovers.
    pub fn takeovers(&self) -> &Named {
        &self.takeovers
    }

    /// The brake on what is in namespaces given up.
    pub fn given_up(&self) -> &Named {
        &self.given_up
    }

    /// Whether an agent asks for something else than what was judged.
    pub fn asks_anew(&self, cluster: &ClusterName, takeovers: Option<Asked>, given_up: Option<Asked>) -> bool {
        self.takeovers.asks_anew(&self.judged.permits, cluster, takeovers)
            || self.given_up.asks_anew(&self.judged.let_go, cluster, given_up)
    }

    /// Judges what agents ask for.
    pub(super) fn judge_named(&mut self, known: &Circumstances<'_>, now: Instant) {
        let Circumstances { uid, all, release, .. } = *known;
        let (mut permits, mut let_go) = (self.judged.permits.clone(), self.judged.let_go.clone());
        let (limit, waiting, joins) = (known.takeovers_limit, known.takeovers.as_ref(), false);
        let takeovers = Question { uid, all, release, limit, waiting, joins, delay: Duration::ZERO };
        self.takeovers.judge(&mut permits, &takeovers, &mut self.spent_takeovers, now);
        let (limit, waiting, joins) = (known.limit, known.given_up.as_ref(), self.is_holding());
        let given_up = Question { uid, all, release, limit, waiting, joins, delay: DELAY };
        self.given_up.judge(&mut let_go, &given_up, &mut self.spent, now);
        if permits != self.judged.permits || let_go != self.judged.let_go {
            let judged = Arc::make_mut(&mut self.judged);
            (judged.permits, judged.let_go) = (permits, let_go);
        }
    }
}
