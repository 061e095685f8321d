//! Explains the origin of one copy, or why it does not exist, by the state of the hub and the
//! answer of the cluster's agent.
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use data_encoding::HEXLOWER;
use k8s_openapi::api::authentication::v1::UserInfo;
use runnel_api::{
    CopyExplanationStatus, ExplainedField, ExplainedObject, ExplainedRule, ReturnedField,
};
use runnel_proto::model::{
    ClusterName, FeedbackValue, Inspected, LiveObject, ObservedHealth, Revision, RuleName, RuleUid,
    SourceRef,
};

use super::copy_reasons::{self, RuleExplanation};
use super::error::ViewError;
use super::plan::resource_of;
use super::review::name_of;
use super::turns::Turn;
use super::{ViewServer, reported_time};

/// The time limit for the answer of an agent.
const ANSWER: Duration = Duration::from_secs(5);

impl ViewServer {
    /// Explains a copy by the rules that the user may get.
    ///
    /// # Errors
    /// [`ViewError::Forbidden`] if the user may get none of them, and [`ViewError::Missing`] if there
    /// is no such cluster.
    pub(super) async fn explain(
        &self,
        user: &UserInfo,
        cluster: &ClusterName,
        copy: &SourceRef,
        turn: &Turn,
    ) -> Result<CopyExplanationStatus, ViewError> {
        self.reader().serving_since()?;
        let mut explanations = self.explain_rules(cluster, copy, turn).await?;
        for explanation in &mut explanations {
            let detail = self.reader().detail(&explanation.uid, cluster)?;
            explanation.unconfirmed = copy_reasons::unconfirmed(detail);
        }
        let visible = self.visible(user, &explanations).await?;
        let member = self
            .content_reviewer
            .may_get(user, "memberclusters", "", cluster.as_str())
            .await?;
        // The answer must not disclose the names of clusters.
        if !member
            && !explanations.iter().any(|explanation| {
                visible.contains(&explanation.uid) && explanation.targets_cluster()
            })
        {
            return Err(ViewError::Forbidden(format!(
                "{} may get no rule with this copy there, nor the MemberCluster {cluster}",
                name_of(user)
            )));
        }
        let Some(known) = self.hub_state.index.read().clusters().get(cluster).cloned() else {
            return Err(ViewError::Missing(format!("there is no member {cluster}")));
        };
        let connected = self
            .hub_state
            .report_store
            .lock()
            .session(cluster, Instant::now())
            .is_some();
        // It must not disclose the state of a namespace either, if no rule that the caller may get
        // has a copy there.
        let may_inspect = |explanations: &[RuleExplanation]| {
            member
                || explanations.iter().any(|explanation| {
                    visible.contains(&explanation.uid) && explanation.has_namespace()
                })
        };
        let asks = connected && may_inspect(&explanations);
        let mut answer = if asks {
            self.inspect(cluster, copy).await
        } else {
            None
        };
        let answered = answer.is_some();
        if let Some(answer) = &answer {
            copy_reasons::with_answer(&mut explanations, answer);
        }
        answer = answer.filter(|_| may_inspect(&explanations));
        let hidden = explanations
            .iter()
            .map(|explanation| &explanation.uid)
            .filter(|uid| !visible.contains(uid))
            .collect::<BTreeSet<_>>();
        let hidden = i64::try_from(hidden.len()).unwrap_or(i64::MAX);
        let words = if !known.accepted {
            "is not accepted"
        } else if !connected {
            "is not connected: this is the state in the hub"
        } else if asks && !answered {
            "is connected, and its agent did not answer in time"
        } else if known.leaving {
            "leaves"
        } else if known.cordoned {
            "is connected, and cordoned"
        } else {
            "is connected"
        };
        let live = answer.as_ref().and_then(|answer| answer.live.as_ref());
        Ok(CopyExplanationStatus {
            cluster: format!("{cluster} {words}"),
            answered,
            namespace: answer
                .as_ref()
                .map(|one| copy_reasons::namespace_text(one.namespace))
                .unwrap_or_default()
                .to_owned(),
            rules: explanations
                .into_iter()
                .filter(|explanation| visible.contains(&explanation.uid))
                .map(rule)
                .collect(),
            live: live.map(|live| self.object(live, &visible, member)),
            hidden,
        })
    }

    /// Explains a copy by all rules. There may be many of them, and the index is not locked
    /// meanwhile.
    async fn explain_rules(
        &self,
        cluster: &ClusterName,
        copy: &SourceRef,
        turn: &Turn,
    ) -> Result<Vec<RuleExplanation>, ViewError> {
        let (hub_state, cluster, copy) = (self.hub_state.clone(), cluster.clone(), copy.clone());
        let stop = turn.stop();
        turn.run(move || {
            let rules: Vec<RuleUid> = hub_state.index.read().rules().uids().cloned().collect();
            copy_reasons::explain_rules(
                rules.into_iter().take_while(|_| !stop.is_set()),
                |read| read(&hub_state.index.read()),
                &cluster,
                &copy,
            )
        })
        .await
    }

    /// Returns the rules of these explanations that the caller may get. There are a few dozen
    /// explanations at most.
    async fn visible(
        &self,
        user: &UserInfo,
        explanations: &[RuleExplanation],
    ) -> Result<BTreeSet<RuleUid>, ViewError> {
        let (mut visible, mut reviewed) = (BTreeSet::new(), BTreeSet::new());
        for explanation in explanations {
            if !reviewed.insert(&explanation.uid) {
                continue;
            }
            let RuleName {
                namespace, name, ..
            } = &explanation.rule;
            let resource = resource_of(&explanation.rule)?;
            let reviewer = &self.content_reviewer;
            if reviewer.may_get(user, resource, namespace, name).await? {
                visible.insert(explanation.uid.clone());
            }
        }
        Ok(visible)
    }

    async fn inspect(&self, cluster: &ClusterName, copy: &SourceRef) -> Option<Inspected> {
        let live = self.hub_state.sessions.get(cluster)?.clone();
        let answered = live.inquiries.inspect(copy.clone())?;
        live.wake.notify_one();
        drop(live);
        tokio::time::timeout(ANSWER, answered).await.ok()?.ok()
    }

    fn object(
        &self,
        live: &LiveObject,
        visible: &BTreeSet<RuleUid>,
        member: bool,
    ) -> ExplainedObject {
        let sealed = live
            .sealed
            .as_ref()
            .filter(|(uid, ..)| member || visible.contains(uid));
        let index = self.hub_state.index.read();
        let name = |uid: &RuleUid| match index.rules().get(uid) {
            Some(entry) => entry.rule.terms.rule.to_string(),
            None => format!("{uid} (not known to the hub)"),
        };
        let (health, health_message) = health_texts(live.health.as_ref());
        ExplainedObject {
            ours: live.ours,
            intact: live.intact,
            rule: sealed.map(|(uid, ..)| name(uid)).unwrap_or_default(),
            source: sealed
                .map(|(_, source, _)| source.plain().to_string())
                .unwrap_or_default(),
            revision: sealed
                .map(|(.., revision)| hex(revision))
                .unwrap_or_default(),
            applied_at: reported_time(live.applied_at),
            uid: live.uid.clone(),
            health,
            health_message,
            feedback: feedback(live, visible),
        }
    }
}

/// Returns the fields that the sealed rule has returned, if the user may get that rule. The right to read the MemberCluster
/// does not cover the content of copies.
fn feedback(live: &LiveObject, visible: &BTreeSet<RuleUid>) -> Vec<ReturnedField> {
    match &live.sealed {
        Some((uid, ..)) if visible.contains(uid) => {
            live.feedback.iter().cloned().map(returned).collect()
        }
        _ => vec![],
    }
}

/// Returns the word of a health and its message; empty without one.
pub(super) fn health_texts(observed: Option<&ObservedHealth>) -> (String, String) {
    let texts =
        observed.map(|observed| (observed.health.to_string(), observed.message.to_string()));
    texts.unwrap_or_default()
}

/// Returns a returned field as the view API has it.
pub(super) fn returned(value: FeedbackValue) -> ReturnedField {
    ReturnedField {
        name: value.name.into(),
        value: value.value.into(),
    }
}

fn hex(revision: &Revision) -> String {
    HEXLOWER.encode(&revision.0)
}

fn rule(explanation: RuleExplanation) -> ExplainedRule {
    ExplainedRule {
        kind: explanation.rule.kind,
        namespace: explanation.rule.namespace,
        name: explanation.rule.name,
        source: explanation.source.to_string(),
        bundle: explanation
            .bundle
            .map_or_else(String::new, |bundle| bundle.to_string()),
        state: explanation.state.to_string(),
        message: explanation.message,
        revision: explanation.revision.as_ref().map(hex).unwrap_or_default(),
        fields: explanation
            .fields
            .into_iter()
            .map(|shaped| ExplainedField {
                field: shaped.field,
                by: shaped.by,
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feedback_is_for_users_who_may_get_the_rule() {
        let source = SourceRef::new("services", "a", "web");
        let live = LiveObject {
            ours: true,
            intact: true,
            sealed: Some(("r".into(), source, Revision([1; 16]))),
            applied_at: 0,
            uid: String::new(),
            health: None,
            feedback: vec![FeedbackValue {
                name: "address".into(),
                value: "192.0.2.1".into(),
            }],
            widened: false,
        };
        let shown =
            |rules: &[&str]| feedback(&live, &rules.iter().map(|rule| (*rule).into()).collect());
        let field = ReturnedField {
            name: "address".to_owned(),
            value: "192.0.2.1".to_owned(),
        };
        assert_eq!(shown(&["r", "other"]), [field]);
        assert_eq!(shown(&["other"]), []);
        let foreign = LiveObject {
            sealed: None,
            ..live.clone()
        };
        assert_eq!(feedback(&foreign, &["r".into()].into()), []);
    }
}
