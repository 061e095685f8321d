//! Create-only requests: plans and explanations. The answer is in the status, and nothing is stored.
use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use k8s_openapi::api::authentication::v1::UserInfo;
use kube::api::ObjectMeta;
use runnel_api::{
    ClusterRulePlan, CopyExplanation, CopyExplanationStatus, CopyTarget, ExplainedObject,
    ExplainedRule, PlanOptions, PlannedCluster, PlannedCopy, PlannedRule, PlannedSource,
    RemovalReview, RemovalReviewSpec, RulePlan, RulePlanStatus,
};
use runnel_proto::model::{KINDS, RuleName};
use runnel_proto::wire::{CopyExplained, CopyQuestion, PlanPage, PlanQuestion, RuleQuestion};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::discovery::View;
use super::error::ViewError;
use super::target::Target;
use super::{ViewServer, reported_time};

/// The kind of the objects that a namespaced plan is about.
const NAMESPACED: &str = "DistributionRule";
/// The kind of rules without a namespace.
const CLUSTER_SCOPED: &str = "ClusterDistributionRule";

impl ViewServer {
    /// Answers a request in its status.
    pub(super) async fn request(
        &self,
        target: &Target,
        user: UserInfo,
        body: &[u8],
    ) -> Result<Response, ViewError> {
        match target.resource.view {
            View::Explanations => {
                let mut asked: CopyExplanation = read(body)?;
                place(&mut asked.metadata, target)?;
                let question = copy_question(&asked)?;
                let answer = self.questions.explain_to(user, question).await?;
                asked.status = Some(explanation(answer));
                Ok(created(&asked))
            }
            View::Removals => {
                let mut asked: RemovalReview = read(body)?;
                place(&mut asked.metadata, target)?;
                let rule = reviewed(&asked)?;
                let skip = usize::try_from(asked.spec.skip).unwrap_or(usize::MAX);
                asked.status = Some(self.questions.removals_for(user, &rule, skip).await?);
                Ok(created(&asked))
            }
            _ if target.resource.namespaced => {
                let mut asked: RulePlan = read(body)?;
                place(&mut asked.metadata, target)?;
                let rule = RuleQuestion {
                    kind: NAMESPACED.to_owned(),
                    namespace: target.namespace.clone(),
                    name: asked.spec.name.clone(),
                };
                let (object, options) = (asked.spec.object.clone(), asked.spec.options);
                asked.status = Some(self.plan(user, object, rule, options).await?);
                Ok(created(&asked))
            }
            _ => {
                let mut asked: ClusterRulePlan = read(body)?;
                let rule = RuleQuestion {
                    kind: asked.spec.kind.clone(),
                    namespace: String::new(),
                    name: asked.spec.name.clone(),
                };
                let (object, options) = (asked.spec.object.clone(), asked.spec.options);
                asked.status = Some(self.plan(user, object, rule, options).await?);
                Ok(created(&asked))
            }
        }
    }

    async fn plan(
        &self,
        user: UserInfo,
        object: Option<Value>,
        saved: RuleQuestion,
        options: PlanOptions,
    ) -> Result<RulePlanStatus, ViewError> {
        let planned = planned(object.as_ref(), saved)?;
        let question = PlanQuestion {
            object: object.map(|object| object.to_string()).unwrap_or_default(),
            rule: Some(planned.clone()),
            dry_run: options.dry_run,
            diff: options.diff,
            delete: options.delete,
        };
        let pages = self.questions.plan_for(user, question).await?;
        Ok(plan_status(planned, pages))
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, ViewError> {
    serde_json::from_slice(body)
        .map_err(|error| ViewError::BadRequest(format!("the object cannot be read: {error}")))
}

fn created(object: &impl Serialize) -> Response {
    let value = serde_json::to_value(object).expect("a request is JSON");
    (StatusCode::CREATED, Json(value)).into_response()
}

/// Sets the namespace of a request to that of its path.
fn place(metadata: &mut ObjectMeta, target: &Target) -> Result<(), ViewError> {
    let given = metadata
        .namespace
        .get_or_insert_with(|| target.namespace.clone());
    if *given == target.namespace {
        return Ok(());
    }
    Err(ViewError::BadRequest(format!(
        "metadata.namespace is {given:?}, and the request is for the namespace {:?}",
        target.namespace
    )))
}

/// Returns the identity of a planned object, which must fit the resource of the request.
fn planned(object: Option<&Value>, saved: RuleQuestion) -> Result<RuleQuestion, ViewError> {
    let text = |path: &str| {
        let value = object.and_then(|object| object.pointer(path));
        value.and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let planned = match object {
        None => saved.clone(),
        Some(_) => RuleQuestion {
            kind: text("/kind"),
            namespace: text("/metadata/namespace"),
            name: text("/metadata/name"),
        },
    };
    let refused = |why: &str| Err(ViewError::BadRequest(why.to_owned()));
    if object.is_some() && !saved.name.is_empty() {
        return refused("spec has object and name: write one of them");
    }
    if planned.name.is_empty() {
        return refused("spec names nothing: write object, or the name of a saved object");
    }
    if saved.namespace.is_empty() {
        if planned.kind == NAMESPACED || planned.kind.is_empty() {
            return refused(
                "a clusterruleplan is about a ClusterDistributionRule, DistributionGrant or MemberCluster: create a ruleplan for a DistributionRule",
            );
        }
    } else if planned.kind != NAMESPACED || planned.namespace != saved.namespace {
        return refused("a ruleplan is about a DistributionRule of its own namespace");
    }
    Ok(planned)
}

/// Returns the rule whose removals are listed.
fn reviewed(asked: &RemovalReview) -> Result<RuleName, ViewError> {
    let RemovalReviewSpec { kind, name, .. } = asked.spec.clone();
    let namespace = match kind.as_str() {
        NAMESPACED => asked.metadata.namespace.clone().unwrap_or_default(),
        CLUSTER_SCOPED => String::new(),
        _ => {
            return Err(ViewError::BadRequest(format!(
                "spec.kind {kind:?} is unknown: use {NAMESPACED} or {CLUSTER_SCOPED}"
            )));
        }
    };
    if name.is_empty() {
        return Err(ViewError::BadRequest(
            "spec.name is empty: write the name of a rule".to_owned(),
        ));
    }
    Ok(RuleName {
        kind,
        namespace,
        name,
    })
}

fn copy_question(asked: &CopyExplanation) -> Result<CopyQuestion, ViewError> {
    let CopyTarget {
        kind,
        namespace,
        name,
    } = &asked.spec.target;
    let known = KINDS.iter().find(|known| known.kind == kind);
    let known = known.ok_or_else(|| {
        let kinds: Vec<_> = KINDS.iter().map(|known| known.kind).collect();
        ViewError::BadRequest(format!(
            "spec.target.kind {kind:?} is unknown: use {}",
            kinds.join(" or ")
        ))
    })?;
    Ok(CopyQuestion {
        cluster: asked.spec.cluster.clone(),
        resource: known.resource.to_owned(),
        namespace: namespace.clone(),
        name: name.clone(),
    })
}

fn plan_status(planned: RuleQuestion, pages: Vec<PlanPage>) -> RulePlanStatus {
    let mut status = RulePlanStatus::default();
    let is_rule = planned.kind == NAMESPACED || planned.kind == CLUSTER_SCOPED;
    for (number, page) in pages.into_iter().enumerate() {
        if number == 0 {
            status.exists = page.exists;
            status.more_rules = page.more_rules.into();
            if !is_rule {
                status.notes = page.notes;
                continue;
            }
        }
        let named = page.rule.or_else(|| (number == 0).then(|| planned.clone()));
        if let Some(named) = named {
            status.rules.push(PlannedRule {
                kind: named.kind,
                namespace: named.namespace,
                name: named.name,
                sent: page.sent.into(),
                incomplete: page.incomplete,
                notes: page.notes,
                ..PlannedRule::default()
            });
        }
        let Some(rule) = status.rules.last_mut() else {
            continue;
        };
        rule.sources
            .extend(page.sources.into_iter().map(|source| PlannedSource {
                source: source.source,
                state: source.state,
                message: source.message,
                cluster: source.cluster,
            }));
        rule.clusters
            .extend(page.clusters.into_iter().map(|cluster| PlannedCluster {
                name: cluster.name,
                state: cluster.state,
                message: cluster.message,
                wave: cluster.wave.into(),
                more: cluster.more.into(),
            }));
        rule.copies
            .extend(page.copies.into_iter().map(|copy| PlannedCopy {
                cluster: copy.cluster,
                copy: copy.copy,
                source: copy.source,
                verdict: copy.verdict,
                reason: copy.reason,
                message: copy.message,
                diff: copy.diff,
            }));
    }
    status
}

fn explanation(answer: CopyExplained) -> CopyExplanationStatus {
    let rules = answer.rules.into_iter().map(|rule| ExplainedRule {
        kind: rule.kind,
        namespace: rule.namespace,
        name: rule.name,
        source: rule.source,
        state: rule.state,
        message: rule.message,
        revision: rule.revision,
    });
    let live = answer.live.map(|live| ExplainedObject {
        ours: live.ours,
        intact: live.intact,
        rule: live.rule,
        source: live.source,
        revision: live.revision,
        applied_at: reported_time(live.applied_at),
        uid: live.uid,
    });
    CopyExplanationStatus {
        cluster: answer.cluster,
        answered: answer.answered,
        namespace: answer.namespace,
        rules: rules.collect(),
        live,
        hidden: answer.hidden.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn saved(kind: &str, namespace: &str, name: &str) -> RuleQuestion {
        RuleQuestion {
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    #[test]
    fn plan_is_about_an_object_of_its_scope() {
        let rule = |kind: &str, namespace: &str| json!({"kind": kind, "metadata": {"namespace": namespace, "name": "r"}});
        let own = saved(NAMESPACED, "shop", "");
        let is =
            |object: &Value, saved: &RuleQuestion| planned(Some(object), saved.clone()).is_ok();
        assert!(is(&rule(NAMESPACED, "shop"), &own));
        assert!(!is(&rule(NAMESPACED, "other"), &own));
        assert!(!is(&rule("ClusterDistributionRule", ""), &own));
        assert!(!is(
            &rule(NAMESPACED, "shop"),
            &saved(NAMESPACED, "shop", "r")
        ));
        let whole = saved("", "", "");
        assert!(is(&rule("MemberCluster", ""), &whole));
        assert!(!is(&rule(NAMESPACED, "shop"), &whole));
        assert!(planned(None, saved(NAMESPACED, "shop", "r")).is_ok());
        assert!(planned(None, own).is_err() && planned(None, whole).is_err());
    }

    #[test]
    fn pages_of_a_plan_are_one_status() {
        let copies = |name: &str| PlanPage {
            copies: vec![runnel_proto::wire::PlanCopy {
                copy: name.to_owned(),
                ..Default::default()
            }],
            ..PlanPage::default()
        };
        let head = PlanPage {
            exists: true,
            sent: 2,
            ..PlanPage::default()
        };
        let pages = vec![head.clone(), copies("a"), copies("b")];
        let status = plan_status(saved(NAMESPACED, "shop", "r"), pages);
        assert_eq!((status.exists, status.rules.len()), (true, 1));
        assert_eq!((status.rules[0].sent, status.rules[0].copies.len()), (2, 2));
        let summary = PlanPage {
            more_rules: 3,
            notes: vec!["note".to_owned()],
            ..PlanPage::default()
        };
        let named = PlanPage {
            rule: Some(saved(NAMESPACED, "shop", "r")),
            ..head
        };
        let pages = vec![summary, named, copies("a")];
        let status = plan_status(saved("MemberCluster", "", "eu-1"), pages);
        assert_eq!((status.more_rules, status.notes.len()), (3, 1));
        assert_eq!(
            (&*status.rules[0].name, status.rules[0].copies.len()),
            ("r", 1)
        );
    }
}
