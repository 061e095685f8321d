//! Create-only requests: plans, explanations and syncs. The answer is in the status, and nothing is stored.
use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use k8s_openapi::api::authentication::v1::UserInfo;
use kube::api::ObjectMeta;
use runnel_api::{
    ClusterRulePlan, ClusterRulePlanSpec, ClusterRuleSync, CopyExplanation, CopyTarget,
    PLANNED_BUNDLES, PlanOptions, RemovalReview, RemovalReviewSpec, RulePlan, RulePlanSpec,
    RuleSync,
};
use runnel_proto::model::{ClusterName, Kind, Kinds, RuleName, SourceRef, is_subdomain};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::ViewServer;
use super::discovery::View;
use super::error::ViewError;
use super::plan::PlanRequest;
use super::target::Target;

/// The kind of rules of a namespace.
const NAMESPACED: &str = "DistributionRule";
/// The kinds of the objects that a namespaced plan is about.
const PLANNED_IN_NAMESPACES: [&str; 2] = [NAMESPACED, "ManifestBundle"];
/// The kind of rules without a namespace.
const CLUSTER_SCOPED: &str = "ClusterDistributionRule";

impl ViewServer {
    /// Answers a request in its status.
    pub(super) async fn request(
        &self,
        target: &Target,
        user: &UserInfo,
        body: &[u8],
    ) -> Result<Response, ViewError> {
        match target.resource.view {
            View::Explanations => {
                let mut asked: CopyExplanation = read(body, target)?;
                place(&mut asked.metadata, target)?;
                let cluster = ClusterName::from(asked.spec.cluster.as_str());
                let copy = self.explained(&asked.spec.target).await?;
                asked.status = Some(self.explain(user, &cluster, &copy).await?);
                Ok(created(&asked))
            }
            View::Removals => {
                let mut asked: RemovalReview = read(body, target)?;
                place(&mut asked.metadata, target)?;
                let rule = reviewed(&asked.spec, &target.namespace)?;
                let skip = usize::try_from(asked.spec.skip).unwrap_or(usize::MAX);
                asked.status = Some(self.removals_for(user, &rule, skip).await?);
                Ok(created(&asked))
            }
            View::Syncs if target.resource.namespaced => {
                let mut asked: RuleSync = read(body, target)?;
                place(&mut asked.metadata, target)?;
                asked.status = Some(self.sync(&rule_name(target, &asked.spec.rule)?).await?);
                Ok(created(&asked))
            }
            View::Syncs => {
                let mut asked: ClusterRuleSync = read(body, target)?;
                asked.status = Some(self.sync(&rule_name(target, &asked.spec.rule)?).await?);
                Ok(created(&asked))
            }
            _ if target.resource.namespaced => {
                let mut asked: RulePlan = read(body, target)?;
                place(&mut asked.metadata, target)?;
                let RulePlanSpec {
                    object,
                    kind,
                    name,
                    bundles,
                    options,
                } = asked.spec.clone();
                let kind = if kind.is_empty() {
                    NAMESPACED.to_owned()
                } else {
                    kind
                };
                let saved = RuleName {
                    kind,
                    namespace: target.namespace.clone(),
                    name,
                };
                let request = planned(object, saved, bundles, options)?;
                asked.status = Some(self.plan(user, &request).await?);
                Ok(created(&asked))
            }
            _ => {
                let mut asked: ClusterRulePlan = read(body, target)?;
                let ClusterRulePlanSpec {
                    object,
                    kind,
                    name,
                    bundles,
                    options,
                } = asked.spec.clone();
                let saved = RuleName {
                    kind,
                    namespace: String::new(),
                    name,
                };
                let request = planned(object, saved, bundles, options)?;
                asked.status = Some(self.plan(user, &request).await?);
                Ok(created(&asked))
            }
        }
    }
}

/// Reads a request. A field that its kind does not have is refused: it may be a typing error.
fn read<T: DeserializeOwned>(body: &[u8], target: &Target) -> Result<T, ViewError> {
    let unreadable = |error: &dyn std::fmt::Display| {
        ViewError::BadRequest(format!("the object cannot be read: {error}"))
    };
    let object: Value = serde_json::from_slice(body).map_err(|error| unreadable(&error))?;
    if let Some(field) = target.resource.unknown_field(&object) {
        return Err(ViewError::BadRequest(format!(
            "{field} is no field of a {}: `kubectl explain {}.spec` lists them",
            target.resource.kind, target.resource.plural
        )));
    }
    serde_json::from_value(object).map_err(|error| unreadable(&error))
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

/// Returns the rule that a sync is about.
fn rule_name(target: &Target, name: &str) -> Result<RuleName, ViewError> {
    if !is_subdomain(name) {
        return Err(ViewError::BadRequest(format!(
            "spec.rule {name:?} is not the name of a rule"
        )));
    }
    let kind = if target.resource.namespaced {
        NAMESPACED
    } else {
        CLUSTER_SCOPED
    };
    Ok(RuleName {
        kind: kind.to_owned(),
        namespace: target.namespace.clone(),
        name: name.to_owned(),
    })
}

/// Returns what is planned, which must fit the resource of the request.
fn planned(
    object: Option<Value>,
    saved: RuleName,
    bundles: Vec<Value>,
    options: PlanOptions,
) -> Result<PlanRequest, ViewError> {
    let text = |path: &str| {
        let value = object.as_ref().and_then(|object| object.pointer(path));
        value.and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let planned = match object {
        None => saved.clone(),
        Some(_) => RuleName {
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
    if bundles.len() > PLANNED_BUNDLES {
        return Err(ViewError::BadRequest(format!(
            "spec.bundles: a plan assumes at most {PLANNED_BUNDLES} bundles"
        )));
    }
    if saved.namespace.is_empty() {
        if PLANNED_IN_NAMESPACES.contains(&planned.kind.as_str()) || planned.kind.is_empty() {
            return refused(
                "a clusterruleplan is about a ClusterDistributionRule, DistributionGrant or MemberCluster: create a \
                 ruleplan for a DistributionRule or ManifestBundle",
            );
        }
    } else if !PLANNED_IN_NAMESPACES.contains(&planned.kind.as_str())
        || planned.namespace != saved.namespace
    {
        return refused(
            "a ruleplan is about a DistributionRule or ManifestBundle of its own namespace",
        );
    }
    Ok(PlanRequest {
        name: planned,
        object,
        bundles,
        options,
    })
}

impl ViewServer {
    /// Returns the copy that is explained. A kind that no rule has needed is looked up at the API server.
    async fn explained(&self, target: &CopyTarget) -> Result<SourceRef, ViewError> {
        let find = || explained(target, &self.hub_state.kinds.borrow());
        if let Some(copy) = find()? {
            return Ok(copy);
        }
        self.find_kinds().await;
        find()?.ok_or_else(|| {
            ViewError::BadRequest(format!(
                "spec.target.kind {:?} is unknown: write the plural and the group, such as \
                 networkpolicies.networking.k8s.io",
                target.kind
            ))
        })
    }
}

/// Returns the rule whose removals are listed.
fn reviewed(asked: &RemovalReviewSpec, namespace: &str) -> Result<RuleName, ViewError> {
    let RemovalReviewSpec { kind, name, .. } = asked.clone();
    let namespace = match kind.as_str() {
        NAMESPACED => namespace.to_owned(),
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

/// Returns the copy that is explained. Its kind is named as in a manifest, or by `plural` or `plural.group`; `None`: no kind of
/// that name is known. Of several kinds that of the core group counts, as for kubectl.
fn explained(target: &CopyTarget, kinds: &Kinds) -> Result<Option<SourceRef>, ViewError> {
    let CopyTarget {
        kind,
        namespace,
        name,
    } = target;
    let is_named = |known: &&Kind| {
        known.kind.eq_ignore_ascii_case(kind)
            || *known.plural == **kind
            || *known.resource == **kind
    };
    let mut named = kinds.iter().filter(is_named);
    let resource = match (named.next(), named.next()) {
        (Some(one), Some(other)) if !one.group.is_empty() && *one.resource != **kind => {
            return Err(ViewError::BadRequest(format!(
                "spec.target.kind {kind:?} is ambiguous: write {one} or {other}"
            )));
        }
        (Some(one), _) => &*one.resource,
        // A member may serve a kind that the hub does not serve.
        (None, _) if kind.contains('.') && is_subdomain(kind) => kind,
        (None, _) => return Ok(None),
    };
    let copy = SourceRef::checked(resource, namespace, name).ok_or_else(|| {
        ViewError::BadRequest(format!(
            "spec.target: `{namespace}` and `{name}` cannot be the namespace and the name of an object"
        ))
    })?;
    Ok(Some(copy))
}

#[cfg(test)]
mod tests {
    use runnel_proto::model::Scope;
    use serde_json::json;

    use super::*;

    fn saved(kind: &str, namespace: &str, name: &str) -> RuleName {
        RuleName {
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    #[test]
    fn explained_kind_is_found_by_any_of_its_names() {
        let kinds: Kinds = [
            Kind::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced),
            Kind::new("", "v1", "Event", "events", Scope::Namespaced),
            Kind::new("events.k8s.io", "v1", "Event", "events", Scope::Namespaced),
            Kind::new(
                "a.example.org",
                "v1",
                "Widget",
                "widgets",
                Scope::Namespaced,
            ),
            Kind::new(
                "b.example.org",
                "v1",
                "Widget",
                "widgets",
                Scope::Namespaced,
            ),
        ]
        .into_iter()
        .collect();
        let find = |kind: &str| {
            let target = CopyTarget {
                kind: kind.to_owned(),
                namespace: "shop".to_owned(),
                name: "x".to_owned(),
            };
            let found = explained(&target, &kinds);
            found.map(|copy| copy.map(|copy| copy.resource.to_string()))
        };
        let named = |kind: &str| find(kind).unwrap().unwrap_or_default();
        for kind in ["ConfigMap", "configmap", "configmaps"] {
            assert_eq!(named(kind), "configmaps", "{kind}");
        }
        assert_eq!(named("event"), "events");
        assert_eq!(named("widgets.b.example.org"), "widgets.b.example.org");
        assert_eq!(named("gadgets.example.org"), "gadgets.example.org");
        assert_eq!(named("gadget"), "");
        assert!(find("widget").is_err());
    }

    #[test]
    fn plan_is_about_an_object_of_its_scope() {
        let rule = |kind: &str, namespace: &str| json!({"kind": kind, "metadata": {"namespace": namespace, "name": "r"}});
        let own = saved(NAMESPACED, "shop", "");
        let options = PlanOptions::default();
        let is = |object: &Value, saved: &RuleName| {
            planned(Some(object.clone()), saved.clone(), vec![], options).is_ok()
        };
        assert!(is(&rule(NAMESPACED, "shop"), &own));
        assert!(!is(&rule(NAMESPACED, "other"), &own));
        assert!(is(&rule("ManifestBundle", "shop"), &own));
        assert!(!is(&rule("ManifestBundle", "other"), &own));
        assert!(!is(&rule("ClusterDistributionRule", ""), &own));
        assert!(!is(
            &rule(NAMESPACED, "shop"),
            &saved(NAMESPACED, "shop", "r")
        ));
        let whole = saved("", "", "");
        assert!(is(&rule("MemberCluster", ""), &whole));
        assert!(!is(&rule(NAMESPACED, "shop"), &whole));
        assert!(!is(&rule("ManifestBundle", "shop"), &whole));
        let is_saved = |saved: RuleName| planned(None, saved, vec![], options).is_ok();
        assert!(is_saved(saved(NAMESPACED, "shop", "r")));
        assert!(is_saved(saved("ManifestBundle", "shop", "b")));
        assert!(!is_saved(saved("MemberCluster", "shop", "m")));
        assert!(!is_saved(own.clone()) && !is_saved(whole));
        let with = |bundles| {
            let bundles = vec![json!({}); bundles];
            planned(
                Some(rule(NAMESPACED, "shop")),
                own.clone(),
                bundles,
                options,
            )
            .is_ok()
        };
        assert!(with(PLANNED_BUNDLES) && !with(PLANNED_BUNDLES + 1));
    }

    #[test]
    fn removals_are_those_of_one_rule() {
        let of = |kind: &str, name: &str| {
            let spec = RemovalReviewSpec {
                kind: kind.to_owned(),
                name: name.to_owned(),
                skip: 0,
            };
            reviewed(&spec, "shop").ok().map(|rule| rule.to_string())
        };
        assert_eq!(of(NAMESPACED, "r"), Some("shop/r".to_owned()));
        assert_eq!(of(CLUSTER_SCOPED, "r"), Some("r".to_owned()));
        assert_eq!((of("MemberCluster", "r"), of(NAMESPACED, "")), (None, None));
    }
}
