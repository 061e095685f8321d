//! Create-only requests: plans, explanations and syncs. The answer is in the status, and nothing is stored.
use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use k8s_openapi::api::authentication::v1::UserInfo;
use kube::api::ObjectMeta;
use runnel_api::{
    ClusterRuleSync, CopyExplanation, CopyTarget, PLANNED_BUNDLES, PlanOptions, RemovalReview,
    RemovalReviewSpec, RulePlanStatus, RuleSync, VIEW_GROUP, VIEW_VERSION,
};
use runnel_proto::model::{ClusterName, Kind, Kinds, RuleName, SourceRef, is_subdomain};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::ViewServer;
use super::discovery::View;
use super::error::ViewError;
use super::head::{Head, decoded};
use super::plan::PlanRequest;
use super::target::Target;
use super::turns::Turn;

/// The kind of rules of a namespace.
const NAMESPACED: &str = "DistributionRule";
/// The kinds of the objects that a namespaced plan is about.
const PLANNED_IN_NAMESPACES: [&str; 2] = [NAMESPACED, "ManifestBundle"];
/// The kind of rules without a namespace.
const CLUSTER_SCOPED: &str = "ClusterDistributionRule";

/// A plan as it is sent and answered. What it plans stays text until the rights of the user are checked.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct SentPlan<'b> {
    #[serde(skip_deserializing)]
    api_version: String,
    #[serde(skip_deserializing)]
    kind: String,
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(borrow)]
    spec: &'b RawValue,
    #[serde(skip_deserializing)]
    status: Option<RulePlanStatus>,
}

/// The spec of a plan.
#[derive(Deserialize)]
struct SentPlanSpec<'b> {
    #[serde(default, borrow)]
    object: Option<&'b RawValue>,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default, borrow)]
    bundles: Vec<&'b RawValue>,
    #[serde(flatten)]
    options: PlanOptions,
}

impl ViewServer {
    /// Answers a request in its status.
    pub(super) async fn request(
        &self,
        target: &Target,
        user: &UserInfo,
        body: &[u8],
        turn: &Turn,
    ) -> Result<Response, ViewError> {
        match target.resource.view {
            View::Explanations => {
                let mut asked: CopyExplanation = read(body, target)?;
                place(&mut asked.metadata, target)?;
                let cluster = ClusterName::from(asked.spec.cluster.as_str());
                let copy = self.explained(&asked.spec.target).await?;
                asked.status = Some(self.explain(user, &cluster, &copy, turn).await?);
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
                let rule = rule_name(target, &asked.spec.rule)?;
                asked.status = Some(self.sync(user, &rule, turn).await?);
                Ok(created(&asked))
            }
            View::Syncs => {
                let mut asked: ClusterRuleSync = read(body, target)?;
                let rule = rule_name(target, &asked.spec.rule)?;
                asked.status = Some(self.sync(user, &rule, turn).await?);
                Ok(created(&asked))
            }
            _ => {
                let mut asked: SentPlan<'_> = read(body, target)?;
                asked.api_version = format!("{VIEW_GROUP}/{VIEW_VERSION}");
                asked.kind.clone_from(&target.resource.kind);
                if target.resource.namespaced {
                    place(&mut asked.metadata, target)?;
                }
                let request = planned(decoded(asked.spec.get())?, target)?;
                asked.status = Some(self.plan(user, &request, turn).await?);
                Ok(created(&asked))
            }
        }
    }
}

/// Reads a request. A field that its kind does not have is refused: it may be a typing error.
fn read<'b, T: Deserialize<'b>>(body: &'b [u8], target: &Target) -> Result<T, ViewError> {
    #[derive(Deserialize)]
    struct Sent<'b> {
        #[serde(default, borrow)]
        spec: Option<&'b RawValue>,
    }
    let text = std::str::from_utf8(body)
        .map_err(|_| ViewError::BadRequest("the object is not UTF-8".to_owned()))?;
    let spec = decoded::<Sent<'_>>(text)?.spec;
    if let Some(field) = spec.and_then(|spec| target.resource.unknown_field(spec)) {
        return Err(ViewError::BadRequest(format!(
            "{field} is no field of a {}: `kubectl explain {}.spec` lists them",
            target.resource.kind, target.resource.plural
        )));
    }
    decoded(text)
}

fn created(object: &impl Serialize) -> Response {
    (StatusCode::CREATED, Json(object)).into_response()
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
fn planned<'b>(spec: SentPlanSpec<'b>, target: &Target) -> Result<PlanRequest<'b>, ViewError> {
    let SentPlanSpec {
        object,
        kind,
        name,
        bundles,
        options,
    } = spec;
    let is_default = target.resource.namespaced && kind.is_empty();
    let saved = RuleName {
        kind: if is_default {
            NAMESPACED.to_owned()
        } else {
            kind
        },
        namespace: target.namespace.clone(),
        name,
    };
    let planned = match object {
        None => saved.clone(),
        Some(object) => Head::read(object)?.into_name(),
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
    use serde_json::{Value, json};

    use super::*;

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

    fn target(path: &str) -> Target {
        Target::of(&format!("/apis/view.runnel.dev/v1alpha1/{path}")).unwrap()
    }

    /// Whether the spec of a plan is accepted, in the namespace `shop` or without one.
    fn is_planned(is_namespaced: bool, spec: &Value) -> bool {
        let target = if is_namespaced {
            target("namespaces/shop/ruleplans")
        } else {
            target("clusterruleplans")
        };
        let text = json!({"metadata": {}, "spec": spec}).to_string();
        let read = read::<SentPlan<'_>>(text.as_bytes(), &target);
        read.and_then(|sent| planned(decoded(sent.spec.get())?, &target).map(drop))
            .is_ok()
    }

    #[test]
    fn plan_is_about_an_object_of_its_scope() {
        let of = |kind: &str, namespace: &str| json!({"kind": kind, "metadata": {"namespace": namespace, "name": "r"}, "spec": {"x": [1]}});
        let is = |own: bool, kind: &str, namespace: &str| {
            is_planned(own, &json!({"object": of(kind, namespace), "dryRun": true}))
        };
        let saved = |own: bool, kind: &str, name: &str| {
            is_planned(own, &json!({"kind": kind, "name": name}))
        };
        assert!(is(true, NAMESPACED, "shop") && is(true, "ManifestBundle", "shop"));
        assert!(!is(true, NAMESPACED, "other") && !is(true, "ManifestBundle", "other"));
        assert!(!is(true, CLUSTER_SCOPED, ""));
        let both = json!({"object": of(NAMESPACED, "shop"), "name": "r"});
        assert!(!is_planned(true, &both));
        assert!(is(false, "MemberCluster", ""));
        assert!(!is(false, NAMESPACED, "shop") && !is(false, "ManifestBundle", "shop"));
        assert!(saved(true, NAMESPACED, "r") && saved(true, "", "r"));
        assert!(saved(true, "ManifestBundle", "b") && !saved(true, "MemberCluster", "m"));
        assert!(!saved(true, "", "") && !saved(false, "", "") && !saved(false, "", "r"));
        let with = |bundles: usize| {
            let bundles = vec![json!({}); bundles];
            is_planned(
                true,
                &json!({"object": of(NAMESPACED, "shop"), "bundles": bundles}),
            )
        };
        assert!(with(PLANNED_BUNDLES) && !with(PLANNED_BUNDLES + 1));
        assert!(!is_planned(true, &json!({"name": "r", "dryrun": true})));
    }

    #[test]
    fn planned_manifest_stays_text_and_is_echoed() {
        let target = target("namespaces/shop/ruleplans");
        let manifest = r#"{"kind":"DistributionRule","spec":{"x":[{"a":0},{"a":1.50}]}}"#;
        let text = format!(r#"{{"metadata":{{}},"spec":{{"object":{manifest}}}}}"#);
        let sent: SentPlan<'_> = read(text.as_bytes(), &target).unwrap();
        let spec: SentPlanSpec<'_> = decoded(sent.spec.get()).unwrap();
        assert_eq!(spec.object.map(RawValue::get), Some(manifest));
        let echoed = serde_json::to_string(&sent).unwrap();
        assert!(echoed.contains(manifest), "{echoed}");
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
