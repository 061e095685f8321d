//! Kinds whose copies are compared by the fields that the agent owns: built-in kinds, which the API server completes and
//! normalizes, and kinds of a CustomResourceDefinition, which come and go.
use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use runnel_proto::model::*;
use runnel_tests::scene::{Draft, Id, SOON, TestCluster, condition};
use runnel_tests::wait::{eventually, steadily};
use serde_json::{Value, json};

use crate::alone::{Alone, plane, source};
use crate::fake_hub::Wanted;

/// Longer than the agent waits between two reads of the kinds.
const KINDS_READ: Duration = Duration::from_secs(120);

/// Starts an agent whose chart and policy name these kinds.
async fn start(name: &str, kinds: &[&str]) -> Result<Alone> {
    start_with(name, kinds, false).await
}

async fn start_with(name: &str, kinds: &[&str], overwrite: bool) -> Result<Alone> {
    let kinds: Vec<_> = [&["configmaps"], kinds].concat();
    let privileged = kinds.iter().filter(|kind| is_privileged(kind));
    let values = json!({"policy": {
        "kinds": kinds, "allowPrivileged": privileged.collect::<Vec<_>>(), "adopt": "Equal", "overwrite": overwrite,
    }});
    let hour = Duration::from_secs(3600);
    let mut alone = Alone::prepare_on(plane().await?, name, hour, &["a"], &values).await?;
    alone.set_policy(&values["policy"].to_string())?;
    alone.start_agent().await?;
    Ok(alone)
}

pub(super) fn content(version: &str, fields: Value) -> Content {
    let fields = fields.as_object().cloned().unwrap_or_default();
    Content {
        labels: BTreeMap::from([("app".to_owned(), "x".to_owned())]),
        version: Some(version.into()),
        fields: fields.into_iter().collect(),
        ..Content::default()
    }
}

/// An agent, and the copy of a kind that it keeps.
pub(super) struct Kept {
    pub(super) alone: Alone,
    resource: &'static str,
    version: &'static str,
    pub(super) id: Id,
}

impl Kept {
    /// Starts an agent for copies of the kind.
    pub(super) async fn start(
        name: &str,
        resource: &'static str,
        api_version: &'static str,
        kind: &str,
    ) -> Result<Self> {
        let alone = start(name, &[resource]).await?;
        Self::of(alone, resource, api_version, kind)
    }

    /// As [`Self::start`], in a member that lets Runnel overwrite objects of others.
    pub(super) async fn start_overwriting(
        name: &str,
        resource: &'static str,
        api_version: &'static str,
        kind: &str,
    ) -> Result<Self> {
        let alone = start_with(name, &[resource], true).await?;
        Self::of(alone, resource, api_version, kind)
    }

    fn of(
        alone: Alone,
        resource: &'static str,
        api_version: &'static str,
        kind: &str,
    ) -> Result<Self> {
        let metadata = json!({"name": "one", "namespace": alone.ns("a")});
        let id = Id::of(&json!({"apiVersion": api_version, "kind": kind, "metadata": metadata}))?;
        let version = api_version.rsplit('/').next().unwrap_or(api_version);
        Ok(Self {
            alone,
            resource,
            version,
            id,
        })
    }

    /// A rule with one source of the kind.
    pub(super) fn rule(&self, fields: Value) -> Wanted {
        let intents = [(source(self.resource, "one"), content(self.version, fields))];
        Wanted {
            terms: self.alone.terms(&["a"]),
            intents: intents.into(),
        }
    }

    /// Sends the rule, and waits until its copy is applied.
    pub(super) async fn want(&self, fields: Value) -> Result<Value> {
        self.alone.hub.want("r", self.rule(fields));
        self.applied().await
    }

    pub(super) async fn applied(&self) -> Result<Value> {
        // The report of an earlier state may be the last one yet.
        let sent = self.alone.hub.revisions("r");
        let is_sent = |state: &RuleState| {
            state.intents_digest == sent && state.counts.copies == 1 && state.counts.applied == 1
        };
        self.alone
            .hub
            .wait_for_report("the applied copy", "r", is_sent)
            .await?;
        self.get().await
    }

    pub(super) async fn get(&self) -> Result<Value> {
        self.alone.place.get(&self.id).await
    }

    /// Waits until the object has these values, by JSON pointers.
    pub(super) async fn has(&self, what: &str, values: &[(&str, Value)]) -> Result<Value> {
        self.alone.place.has_values(what, &self.id, values).await
    }

    /// Another client changes the object, by a field manager of its own.
    pub(super) async fn edit(&self, patch: Value) -> Result<()> {
        let (namespace, text) = (self.alone.ns("a"), patch.to_string());
        let kind = if patch.is_array() {
            "--type=json"
        } else {
            "--type=merge"
        };
        let arguments = [
            "-n",
            &namespace,
            "patch",
            self.resource,
            "one",
            kind,
            "-p",
            &text,
        ];
        self.alone.plane.kubectl(&arguments).await.map(drop)
    }

    /// Requests that may write objects of the kind, dry runs included.
    pub(super) fn writes(&self, mark: runnel_tests::audit::Mark) -> Result<Vec<String>> {
        let (plural, namespace) = (self.resource.split('.').next(), self.alone.ns("a"));
        let writes = self.alone.plane.writes_since(mark)?.into_iter();
        let of_kind =
            writes.filter(|write| write.namespace == namespace && Some(&*write.resource) == plural);
        Ok(of_kind
            .map(|write| {
                format!(
                    "{} {} {} by {}",
                    write.verb, write.name, write.code, write.user
                )
            })
            .collect())
    }

    pub(super) async fn is_idle(&self) -> Result<()> {
        let mark = self.alone.plane.mark();
        steadily("no writes at rest", Duration::from_secs(3), async || {
            let writes = self.writes(mark)?;
            ensure!(writes.is_empty(), "{writes:?}");
            Ok(())
        })
        .await
    }

    /// Restarts the agent. The copy is right, and nothing is written.
    pub(super) async fn restart(&mut self) -> Result<()> {
        let (mark, sessions) = (self.alone.plane.mark(), self.alone.hub.sessions());
        self.alone.stop_agent().await?;
        self.alone.start_agent().await?;
        eventually("another session", SOON, async || {
            Ok((self.alone.hub.sessions() > sessions).then_some(()))
        })
        .await?;
        self.applied().await?;
        let writes = self.writes(mark)?;
        ensure!(writes.is_empty(), "{writes:?}");
        self.is_idle().await
    }
}

#[tokio::test]
async fn network_policy_has_its_defaults_and_no_drift() -> Result<()> {
    let resource = "networkpolicies.networking.k8s.io";
    let mut one = Kept::start("netpol", resource, "networking.k8s.io/v1", "NetworkPolicy").await?;
    let spec = |port: u16| {
        json!({"spec": {
            "podSelector": {"matchLabels": {"app": "web"}},
            "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": port}]}],
        }})
    };
    let made = one.want(spec(80)).await?;
    // Both are defaults of the API server; the second one is inside a list of ours.
    assert_eq!(made["spec"]["policyTypes"], json!(["Ingress"]));
    assert_eq!(made["spec"]["ingress"][0]["ports"][0]["protocol"], "TCP");
    one.is_idle().await?;
    one.restart().await?;

    one.edit(json!({"spec": {"policyTypes": ["Ingress", "Egress"]}}))
        .await?;
    one.edit(json!({"metadata": {"annotations": {"theirs": "x"}}}))
        .await?;
    one.is_idle().await?;
    one.edit(json!({"spec": {"ingress": []}})).await?;
    let right = ("/spec/ingress/0/ports/0/port", json!(80));
    let put_back = one.has("the rule put back", &[right]).await?;
    assert_eq!(
        put_back["spec"]["policyTypes"],
        json!(["Ingress", "Egress"])
    );
    assert_eq!(put_back["metadata"]["annotations"]["theirs"], "x");
    let event = one.alone.place.has_event(&one.id, "DriftCorrected").await?;
    ensure!(event.note.contains("/spec/ingress"), "{event:?}");

    one.want(spec(81)).await?;
    one.has("the edit", &[("/spec/ingress/0/ports/0/port", json!(81))])
        .await?;
    one.is_idle().await?;
    one.alone.hub.remove("r", DeletionPolicy::Delete);
    one.alone.place.lacks(&one.id).await
}

#[tokio::test]
async fn ignored_fields_of_a_deployment_stay_with_their_writers() -> Result<()> {
    let mut one = Kept::start("ignored", "deployments.apps", "apps/v1", "Deployment").await?;
    let image = "/spec/template/spec/containers/[name=app]/image";
    let spec = |replicas: u8, image: &str, level: &str| {
        let env = json!([{"name": "LEVEL", "value": level}]);
        json!({"spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "app", "image": image, "env": env}]},
            },
        }})
    };
    let ignoring = |one: &Kept, fields: Value| {
        let mut rule = one.rule(fields);
        let paths = ["/spec/replicas", image].map(FieldPath::parse);
        rule.terms.ignore_fields = paths.into_iter().flatten().collect();
        one.alone.hub.want("r", rule);
    };
    const LEVEL: &str = "/spec/template/spec/containers/0/env/0/value";
    const IMAGE: &str = "/spec/template/spec/containers/0/image";
    ignoring(&one, spec(1, "app:1", "info"));
    let made = one.applied().await?;
    assert_eq!(made["spec"]["replicas"], 1);
    assert_eq!(made.pointer(IMAGE), Some(&json!("app:1")));
    one.is_idle().await?;

    // Another client takes over one of them. An edit of the source changes neither.
    one.edit(json!({"spec": {"replicas": 7}})).await?;
    one.is_idle().await?;
    ignoring(&one, spec(2, "app:2", "debug"));
    one.applied().await?;
    let values = [
        ("/spec/replicas", json!(7)),
        (IMAGE, json!("app:1")),
        (LEVEL, json!("debug")),
    ];
    one.has("the edit of the other field", &values).await?;
    one.is_idle().await?;
    one.restart().await?;

    // Drift of another field is corrected, and only that.
    let drift = json!([
        {"op": "replace", "path": LEVEL, "value": "trace"},
        {"op": "replace", "path": IMAGE, "value": "app:3"},
        {"op": "replace", "path": "/spec/replicas", "value": 9},
    ]);
    one.edit(drift).await?;
    let values = [
        ("/spec/replicas", json!(9)),
        (IMAGE, json!("app:3")),
        (LEVEL, json!("debug")),
    ];
    one.has("the other field put back", &values).await?;
    one.is_idle().await?;

    // No longer ignored, they are the source's again.
    one.alone.hub.want("r", one.rule(spec(2, "app:2", "debug")));
    let values = [("/spec/replicas", json!(2)), (IMAGE, json!("app:2"))];
    one.has("the values of the source", &values).await?;
    one.alone.hub.wait_applied("r", 1).await?;
    one.is_idle().await
}

#[tokio::test]
async fn service_keeps_what_the_cluster_has_assigned() -> Result<()> {
    let mut one = Kept::start("svc", "services", "v1", "Service").await?;
    let spec = |port: u16| {
        json!({"spec": {
            "type": "NodePort", "selector": {"app": "web"}, "ports": [{"name": "web", "port": port, "targetPort": 8000}],
        }})
    };
    let made = one.want(spec(80)).await?;
    let (ip, node_port) = (
        &made["spec"]["clusterIP"],
        &made["spec"]["ports"][0]["nodePort"],
    );
    assert!(ip.is_string() && node_port.is_u64(), "{made}");
    one.is_idle().await?;
    one.restart().await?;

    one.edit(json!({"spec": {"selector": {"app": "evil", "theirs": "x"}}}))
        .await?;
    one.has(
        "our selector",
        &[
            ("/spec/selector/app", json!("web")),
            ("/spec/clusterIP", ip.clone()),
        ],
    )
    .await?;
    one.edit(json!([{"op": "replace", "path": "/spec/ports/0/targetPort", "value": 9}]))
        .await?;
    one.has("our port", &[("/spec/ports/0/targetPort", json!(8000))])
        .await?;
    one.alone.hub.wait_applied("r", 1).await?;

    one.is_idle().await?;

    // Another client has replaced our port by one of the same name, beside which ours would be invalid. All earlier
    // corrections are reported by now.
    let restored = || one.alone.hub.received().matches("Restored").count();
    let before = restored();
    one.edit(json!([{"op": "replace", "path": "/spec/ports/0/port", "value": 8080}]))
        .await?;
    eventually("the correction", SOON, async || {
        Ok((restored() > before).then_some(()))
    })
    .await?;
    let corrected = one.applied().await?;
    assert_eq!(corrected["spec"]["ports"][0]["port"], 80, "{corrected}");
    let entries = corrected["metadata"]["managedFields"].as_array();
    let is_patch =
        |entry: &Value| entry["manager"] == "runnel-agent" && entry["operation"] == "Update";
    assert!(
        !entries.context("no entries")?.iter().any(is_patch),
        "{corrected}"
    );
    one.is_idle().await?;

    let edited = one.want(spec(81)).await?;
    assert_eq!(&edited["spec"]["clusterIP"], ip);
    assert_eq!(
        edited["spec"]["ports"].as_array().map(Vec::len),
        Some(1),
        "{edited}"
    );

    // A cluster IP that was assigned cannot be changed.
    let mut fixed = spec(81);
    fixed["spec"]["type"] = json!("ClusterIP");
    fixed["spec"]["clusterIP"] = json!("None");
    one.alone.hub.want("r", one.rule(fixed));
    one.alone.hub.wait_failed("r", Reason::Immutable).await?;
    Ok(())
}

pub(super) fn deployment(image: &str, env: &[&str]) -> Value {
    let env: Vec<_> = env
        .iter()
        .map(|name| json!({"name": name, "value": "1"}))
        .collect();
    let resources = json!({"requests": {"cpu": "1000m", "memory": "1024Mi"}});
    let container = json!({"name": "web", "image": image, "env": env, "resources": resources});
    json!({"spec": {
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}},
    }})
}

pub(super) const CONTAINERS: &str = "/spec/template/spec/containers";

#[tokio::test]
async fn deployment_is_corrected_inside_its_lists() -> Result<()> {
    let mut one = Kept::start("deploy", "deployments.apps", "apps/v1", "Deployment").await?;
    let made = one.want(deployment("web:1", &["A", "B"])).await?;
    let cpu = format!("{CONTAINERS}/0/resources/requests/cpu");
    assert_eq!(
        made.pointer(&cpu),
        Some(&json!("1")),
        "the API server normalizes it"
    );
    assert_eq!(made["spec"]["replicas"], 1);
    assert!(made["status"].get("replicas").is_none());
    one.is_idle().await?;
    one.restart().await?;

    // What the source leaves to the cluster stays as another client sets it.
    one.edit(json!({"spec": {"replicas": 3}})).await?;
    one.edit(json!([{"op": "add", "path": format!("{CONTAINERS}/-"), "value": {"name": "sidecar", "image": "s:1"}}]))
        .await?;
    one.edit(json!({"metadata": {"annotations": {"theirs": "x"}, "labels": {"theirs": "y"}}}))
        .await?;
    one.alone
        .place
        .change_status(&one.id, json!({"status": {"observedGeneration": 1}}))
        .await?;
    one.is_idle().await?;

    // Our fields are put back, those inside a list too.
    one.edit(
        json!([{"op": "replace", "path": format!("{CONTAINERS}/0/image"), "value": "evil:1"}]),
    )
    .await?;
    let image = format!("{CONTAINERS}/0/image");
    let put_back = one.has("our image", &[(&image, json!("web:1"))]).await?;
    assert_eq!(put_back["spec"]["replicas"], 3);
    assert_eq!(
        put_back.pointer(&format!("{CONTAINERS}/1/name")),
        Some(&json!("sidecar"))
    );
    assert_eq!(put_back["metadata"]["annotations"]["theirs"], "x");
    one.edit(json!([{"op": "remove", "path": format!("{CONTAINERS}/0/env/0")}]))
        .await?;
    let names = |object: &Value| -> Vec<String> {
        let env = object
            .pointer(&format!("{CONTAINERS}/0/env"))
            .and_then(Value::as_array);
        let names = env
            .into_iter()
            .flatten()
            .filter_map(|entry| entry["name"].as_str());
        let mut names: Vec<_> = names.map(str::to_owned).collect();
        names.sort();
        names
    };
    let both = |object: &Value| {
        ensure!(names(object) == ["A", "B"], "{:?}", names(object));
        Ok(())
    };
    one.alone
        .place
        .sees("both variables", &one.id, both)
        .await?;
    one.alone.hub.wait_applied("r", 1).await?;
    one.is_idle().await?;

    // An entry that leaves the source leaves the copy.
    let edited = one.want(deployment("web:2", &["B"])).await?;
    assert_eq!(names(&edited), ["B"]);
    assert_eq!(edited["spec"]["replicas"], 3);
    one.is_idle().await?;

    // The selector cannot be changed.
    let mut other = deployment("web:2", &["B"]);
    other["spec"]["selector"]["matchLabels"]["more"] = json!("x");
    other["spec"]["template"]["metadata"]["labels"]["more"] = json!("x");
    let mut wanted = one.rule(other);
    one.alone.hub.want("r", wanted.clone());
    one.alone.hub.wait_failed("r", Reason::Immutable).await?;
    wanted.terms.immutable_policy = ImmutablePolicy::Recreate;
    one.alone.hub.want("r", wanted);
    one.has(
        "made again",
        &[("/spec/selector/matchLabels/more", json!("x"))],
    )
    .await?;
    one.alone.hub.wait_applied("r", 1).await?;
    one.is_idle().await
}

#[tokio::test]
async fn drift_of_a_deployment_is_reported_by_field_paths() -> Result<()> {
    let one = Kept::start("paths", "deployments.apps", "apps/v1", "Deployment").await?;
    let mut wanted = one.rule(deployment("web:1", &["A"]));
    wanted.terms.drift_policy = DriftPolicy::Report;
    one.alone.hub.want("r", wanted);
    one.applied().await?;
    one.edit(json!([
        {"op": "replace", "path": format!("{CONTAINERS}/0/image"), "value": "evil:1"},
        {"op": "remove", "path": format!("{CONTAINERS}/0/env")},
        {"op": "add", "path": "/spec/paused", "value": true},
    ]))
    .await?;
    let state = one
        .alone
        .hub
        .wait_for_report("the drift", "r", |state| state.counts.drifted == 1)
        .await?;
    let message = &state.failures[0].message;
    assert_eq!(state.failures[0].reason, Reason::Drifted);
    let web = "/spec/template/spec/containers/[name=web]";
    let expected = format!(
        "changed here by kubectl-patch and left so: {web}/env is missing; {web}/image is \"evil:1\" instead of \"web:1\""
    );
    assert_eq!(*message, expected);
    Ok(())
}

#[tokio::test]
async fn equal_objects_of_others_are_adopted_and_unequal_ones_are_not() -> Result<()> {
    let one = Kept::start("adopt-owned", "services", "v1", "Service").await?;
    let spec = |port: u16| json!({"selector": {"app": "web"}, "ports": [{"port": port}]});
    let mut theirs = json!({"apiVersion": "v1", "kind": "Service", "spec": spec(80)});
    theirs["metadata"] =
        json!({"name": "one", "namespace": one.alone.ns("a"), "labels": {"theirs": "x"}});
    let theirs = one.alone.place.make(&theirs).await?;
    let adopting = |fields: Value| {
        let mut wanted = one.rule(fields);
        wanted.terms.conflict_policy = ConflictPolicy::AdoptIfEqual;
        wanted
    };
    one.alone.hub.want("r", adopting(json!({"spec": spec(81)})));
    one.alone.hub.wait_failed("r", Reason::Conflict).await?;
    one.alone.place.is_untouched(&theirs).await?;

    one.alone.hub.want("r", adopting(json!({"spec": spec(80)})));
    let adopted = one.applied().await?;
    assert_eq!(adopted["metadata"]["uid"], theirs["metadata"]["uid"]);
    assert_eq!(adopted["spec"], theirs["spec"]);
    assert_eq!(adopted["metadata"]["labels"]["theirs"], "x");
    let seal = adopted["metadata"]["annotations"]["runnel.dev/seal"].as_str();
    assert!(
        seal.is_some_and(|seal| seal.starts_with("v1a.")),
        "{seal:?}"
    );
    one.is_idle().await
}

/// An object without marks, and without what the API server changes with each write.
fn unmarked(object: &Value) -> Value {
    let mut object = object.clone();
    for part in ["labels", "annotations"] {
        if let Some(keys) = object["metadata"][part].as_object_mut() {
            keys.retain(|key, _| !is_mark(key));
        }
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|field, _| !["managedFields", "resourceVersion"].contains(&&**field));
    }
    object
}

/// Whatever a hub sends, an object of others gets marks and nothing else, and is as before when they are gone.
#[tokio::test]
async fn adoption_of_any_kind_adds_marks_and_nothing_else() -> Result<()> {
    let kind = "ingresses.networking.k8s.io";
    let one = Kept::start("marks-only", kind, "networking.k8s.io/v1", "Ingress").await?;
    let host = |name: &str| {
        let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
        let paths = json!([{"path": "/", "pathType": "Prefix", "backend": backend}]);
        json!([{"host": name, "http": {"paths": paths}}])
    };
    let theirs = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {"name": "one", "namespace": one.alone.ns("a"), "labels": {"theirs": "x"}, "annotations": {"note": "y"}},
        "spec": {"ingressClassName": "public", "rules": host("shop.example.com")},
    });
    let mut theirs = one.alone.place.make(&theirs).await?;
    let wanted = |conflict_policy, ignored: &[&str], fields: &Value, revision: u8| {
        let mut wanted = one.rule(fields.clone());
        wanted.terms.conflict_policy = conflict_policy;
        let ignored = ignored.iter().filter_map(|path| FieldPath::parse(path));
        wanted.terms.ignore_fields = ignored.collect();
        for content in wanted.intents.values_mut() {
            let evil = [
                ("nginx.ingress.kubernetes.io/mirror-target", "evil"),
                ("round", &*revision.to_string()),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned()));
            content.annotations = evil.into();
            content.labels = [("owned-by".to_owned(), "mallory".to_owned())].into();
        }
        wanted
    };
    use ConflictPolicy::{AdoptIfEqual, Fail, Overwrite};
    let equal = json!({"spec": {"rules": host("shop.example.com")}});
    let other = json!({"spec": {"rules": host("evil.example.com")}});
    let steps = [
        (AdoptIfEqual, &[][..], json!({}), Some(Reason::Conflict)),
        (
            AdoptIfEqual,
            &[],
            json!({"spec": {}}),
            Some(Reason::Conflict),
        ),
        (
            AdoptIfEqual,
            &["/spec/rules"],
            other.clone(),
            Some(Reason::Conflict),
        ),
        (AdoptIfEqual, &[], equal.clone(), None),
        (AdoptIfEqual, &[], equal.clone(), None),
        (
            AdoptIfEqual,
            &["/spec/rules"],
            other.clone(),
            Some(Reason::Conflict),
        ),
        (Overwrite, &[], other.clone(), Some(Reason::Denied)),
        (Fail, &[], other, Some(Reason::Conflict)),
        (AdoptIfEqual, &[], equal, None),
    ];
    for (round, (policy, ignored, fields, refusal)) in (0..).zip(steps) {
        let wanted = wanted(policy, ignored, &fields, round);
        one.alone.hub.want("r", wanted);
        match refusal {
            Some(reason) => drop(one.alone.hub.wait_failed("r", reason).await?),
            None => {
                let adopted = one.applied().await?;
                let seal = adopted["metadata"]["annotations"]["runnel.dev/seal"].as_str();
                ensure!(
                    seal.is_some_and(|seal| seal.starts_with("v1a.")),
                    "{adopted}"
                );
            }
        }
        let now = one.get().await?;
        ensure!(unmarked(&now) == unmarked(&theirs), "round {round}: {now}");
    }
    // Its owner changes a field that the source lacks, and then one that it has.
    let path = json!([{"op": "replace", "path": "/spec/ingressClassName", "value": "private"}]);
    theirs = one.alone.place.json_patch(&one.id, path).await?;
    // It is compared again and sealed as it is now.
    eventually("no more writes", SOON, async || {
        Ok(one.is_idle().await.ok())
    })
    .await?;
    let now = one.get().await?;
    ensure!(unmarked(&now) == unmarked(&theirs), "{now}");
    one.alone.hub.wait_applied("r", 1).await?;
    let path = json!([{"op": "replace", "path": "/spec/rules/0/host", "value": "new.example.com"}]);
    theirs["spec"] = one.alone.place.json_patch(&one.id, path).await?["spec"].clone();
    one.alone.hub.wait_failed("r", Reason::Conflict).await?;

    one.alone.hub.remove("r", DeletionPolicy::Delete);
    one.alone.hub.wait_gone("r").await?;
    let left = one.get().await?;
    theirs["metadata"]["generation"] = left["metadata"]["generation"].clone();
    ensure!(
        unmarked(&left) == unmarked(&theirs),
        "{left} instead of {theirs}"
    );
    ensure!(!left.to_string().contains("runnel"), "{left}");
    Ok(())
}

#[tokio::test]
async fn contention_for_a_field_names_its_managers() -> Result<()> {
    let resource = "networkpolicies.networking.k8s.io";
    let api_version = "networking.k8s.io/v1";
    let one = Kept::start("contend", resource, api_version, "NetworkPolicy").await?;
    one.want(json!({"spec": {"podSelector": {"matchLabels": {"app": "web"}}}}))
        .await?;
    let ours = ("/spec/podSelector/matchLabels/app", json!("web"));
    for _ in 0..6 {
        one.edit(json!({"spec": {"podSelector": {"matchLabels": {"app": "evil"}}}}))
            .await?;
        one.has("put back", std::slice::from_ref(&ours)).await?;
    }
    let message = one.alone.hub.wait_failed("r", Reason::Contended).await?;
    assert!(
        message.starts_with("kubectl-patch keeps changing"),
        "{message}"
    );
    Ok(())
}

/// A kind with everything that a schema can make of an object.
fn widgets(group: &str, versions: &[&str]) -> Value {
    let any = json!({"x-kubernetes-preserve-unknown-fields": true, "type": "object"});
    let part = json!({"type": "object", "required": ["name"], "properties": {
        "name": {"type": "string"},
        "size": {"type": "integer", "default": 1},
        "port": {"x-kubernetes-int-or-string": true},
    }});
    let parts = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        "items": part});
    let spec = json!({"type": "object", "properties": {
        "mode": {"type": "string", "default": "Auto"},
        "parts": parts,
        "any": any,
        "limits": {"type": "object", "additionalProperties": {"type": "string"}},
        "list": {"type": "array", "items": {"type": "string"}},
    }});
    let versions: Vec<_> = versions.iter().map(|version| (*version, &spec)).collect();
    Draft::definition(&format!("widgets.{group}"), "Widget", &versions).json()
}

fn widget(size: &Value) -> Value {
    json!({"spec": {
        "any": {"free": {"deep": [1, "two", {"three": null}]}, "empty": {}},
        "parts": [{"name": "a", "port": "80%"}, {"name": "b", "port": 8080, "size": size}],
        "limits": {"cpu": "1"},
        "list": ["x", "y"],
    }})
}

/// Makes a kind, and waits until its objects are served.
pub(super) async fn make_kind(definition: &Value) -> Result<Id> {
    let place = TestCluster::new("alone", plane().await?.client().await?);
    let made = Id::of(&place.make(definition).await?)?;
    let established = |object: &Value| {
        let established = condition(object, "Established")?;
        ensure!(established["status"] == "True", "{established}");
        Ok(())
    };
    place.sees("established", &made, established).await?;
    Ok(made)
}

#[tokio::test]
async fn kind_of_a_definition_comes_and_goes_without_a_restart() -> Result<()> {
    let one = Kept::start(
        "crd",
        "widgets.crd.example.org",
        "crd.example.org/v1",
        "Widget",
    )
    .await?;
    let alone = &one.alone;
    // A kind that is not served costs its own copies alone, and no tight loop.
    let mut wanted = one.rule(widget(&json!(2)));
    let settings = alone.rule(&["a"], &[("settings", "1")]);
    wanted.intents.extend(settings.intents.clone());
    let mark = alone.plane.mark();
    alone.hub.want("r", wanted);
    let state = one
        .alone
        .hub
        .wait_for_report("one failure", "r", |state| {
            (state.counts.applied, state.counts.failed) == (1, 1)
        })
        .await?;
    assert_eq!(
        state.failures[0].reason,
        Reason::KindNotServed,
        "{:?}",
        state.failures
    );
    assert!(
        state.failures[0]
            .message
            .contains("widgets.crd.example.org"),
        "{:?}",
        state.failures
    );
    one.is_idle().await?;
    let writes = one.writes(mark)?;
    assert!(writes.is_empty(), "{writes:?}");

    let definition = make_kind(&widgets("crd.example.org", &["v1"])).await?;
    let applied = |state: &RuleState| (state.counts.applied, state.counts.failed) == (2, 0);
    let appears = async |what: &str, accepts: &dyn Fn(&RuleState) -> bool| {
        eventually(what, KINDS_READ, async || {
            let state = alone.hub.observed("r").context("no report")?;
            ensure!(accepts(&state), "{state:?}");
            Ok(Some(()))
        })
        .await
    };
    appears("the kind to be noticed", &applied).await?;
    let made = one.get().await?;
    assert_eq!(made["spec"]["mode"], "Auto");
    assert_eq!(made["spec"]["parts"][0]["size"], 1);
    assert_eq!(made["spec"]["any"]["free"]["deep"][1], "two");
    one.is_idle().await?;

    // The kind goes, and comes back.
    alone.place.delete(&definition).await?;
    let failed = |state: &RuleState| {
        state.counts.failed == 1 && state.failures[0].reason == Reason::KindNotServed
    };
    appears("the loss of the kind to be noticed", &failed).await?;
    alone.place.lacks(&definition).await?;
    make_kind(&widgets("crd.example.org", &["v1"])).await?;
    appears("the kind to be noticed again", &applied).await?;

    // Without the kind, the rule has nothing to remove.
    alone.place.delete(&definition).await?;
    appears("the loss of the kind to be noticed again", &failed).await?;
    alone.hub.remove("r", DeletionPolicy::Delete);
    one.alone.hub.wait_gone("r").await?;
    Ok(())
}

#[tokio::test]
async fn widget_is_kept_in_every_field() -> Result<()> {
    let resource = "widgets.kept.example.org";
    let definition = widgets("kept.example.org", &["v1"]);
    make_kind(&definition).await?;
    let mut one = Kept::start("widget", resource, "kept.example.org/v1", "Widget").await?;
    one.want(widget(&json!(2))).await?;
    one.is_idle().await?;
    one.restart().await?;

    // Foreign fields stay: an item of a list by key, a key of a map, a default, the status.
    one.edit(json!({"spec": {"mode": "Manual", "limits": {"memory": "1"}}}))
        .await?;
    one.edit(json!([{"op": "add", "path": "/spec/parts/-", "value": {"name": "theirs"}}]))
        .await?;
    one.edit(json!([{"op": "replace", "path": "/spec/parts/0/size", "value": 7}]))
        .await?;
    one.alone
        .place
        .change_status(&one.id, json!({"status": {"ready": true}}))
        .await?;
    one.is_idle().await?;
    let before = one.get().await?;

    // Each field of ours is put back.
    one.edit(json!([
        {"op": "replace", "path": "/spec/parts/1/size", "value": 9},
        {"op": "replace", "path": "/spec/parts/0/port", "value": 80},
        {"op": "replace", "path": "/spec/limits/cpu", "value": "2"},
        {"op": "replace", "path": "/spec/any/free/deep", "value": []},
        {"op": "add", "path": "/spec/list/-", "value": "theirs"},
        {"op": "replace", "path": "/metadata/labels/app", "value": "y"},
    ]))
    .await?;
    let ours = [
        ("/spec/parts/1/size", json!(2)),
        ("/spec/parts/0/port", json!("80%")),
        ("/spec/limits/cpu", json!("1")),
        ("/spec/any/free/deep/1", json!("two")),
        ("/spec/list", json!(["x", "y"])),
        ("/metadata/labels/app", json!("x")),
    ];
    let theirs = |object: &Value| {
        assert_eq!(object["spec"]["mode"], "Manual");
        assert_eq!(object["spec"]["limits"]["memory"], "1");
        assert_eq!(object["spec"]["parts"][0]["size"], 7);
        assert_eq!(object["spec"]["parts"][2]["name"], "theirs");
        assert_eq!(object["status"], before["status"]);
        assert_eq!(object["metadata"]["uid"], before["metadata"]["uid"]);
    };
    theirs(&one.has("put back", &ours).await?);
    one.alone.hub.wait_applied("r", 1).await?;
    one.edit(json!({"metadata": {
        "labels": {"runnel.dev/hub": null}, "annotations": {"runnel.dev/seal": null},
    }}))
    .await?;
    let hub = json!(one.alone.hub.hub_id());
    let marked = one
        .has("marked again", &[("/metadata/labels/runnel.dev~1hub", hub)])
        .await?;
    theirs(&marked);
    one.alone.hub.wait_applied("r", 1).await?;
    one.is_idle().await?;

    // A removed item comes back, wherever the API server puts it.
    one.edit(json!([{"op": "remove", "path": "/spec/parts/1"}]))
        .await?;
    let has_item = |object: &Value| {
        let parts = object["spec"]["parts"].as_array();
        let item = parts.and_then(|parts| parts.iter().find(|part| part["name"] == "b"));
        ensure!(
            item.is_some_and(|item| item["port"] == 8080 && item["size"] == 2),
            "{parts:?}"
        );
        Ok(())
    };
    one.alone
        .place
        .sees("complete again", &one.id, has_item)
        .await?;
    one.alone.hub.wait_applied("r", 1).await?;
    one.is_idle().await?;

    // What leaves the source leaves the copy; what others have added stays.
    let mut less = widget(&Value::Null);
    less["spec"]["parts"] = json!([{"name": "a"}]);
    let spec = less["spec"].as_object_mut().context("no spec")?;
    spec.remove("limits");
    spec.remove("any");
    let edited = one.want(less).await?;
    let parts: Vec<_> = edited["spec"]["parts"]
        .as_array()
        .context("no parts")?
        .iter()
        .collect();
    let names: Vec<_> = parts
        .iter()
        .filter_map(|part| part["name"].as_str())
        .collect();
    assert_eq!(names, ["a", "theirs"], "{edited}");
    assert!(
        parts[0].get("port").is_none() && edited["spec"].get("any").is_none(),
        "{edited}"
    );
    assert_eq!(edited["spec"]["limits"], json!({"memory": "1"}));
    one.is_idle().await?;
    one.alone.hub.remove("r", DeletionPolicy::Retain);
    one.alone.hub.wait_gone("r").await?;
    let left = one.get().await?;
    assert!(
        left["metadata"]["annotations"]
            .get("runnel.dev/seal")
            .is_none(),
        "{left}"
    );
    assert_eq!(left["spec"], edited["spec"]);
    Ok(())
}

#[tokio::test]
async fn source_of_another_version_is_written_in_it() -> Result<()> {
    let resource = "widgets.versions.example.org";
    // The API server prefers the stable version.
    make_kind(&widgets("versions.example.org", &["v1", "v1beta1"])).await?;
    let mut one = Kept::start(
        "versions",
        resource,
        "versions.example.org/v1beta1",
        "Widget",
    )
    .await?;
    let made = one.want(widget(&json!(2))).await?;
    let entries = made["metadata"]["managedFields"]
        .as_array()
        .context("no entries")?;
    let is_ours = |entry: &&Value| entry["manager"] == "runnel-agent";
    let ours = entries.iter().find(is_ours).context("no entry of ours")?;
    assert_eq!(ours["apiVersion"], "versions.example.org/v1beta1");
    one.is_idle().await?;
    one.restart().await?;
    one.edit(json!({"spec": {"limits": {"cpu": "2"}}})).await?;
    one.has("put back", &[("/spec/limits/cpu", json!("1"))])
        .await?;
    one.alone.hub.wait_applied("r", 1).await?;
    one.is_idle().await?;

    // The source is read in the other version, and then in one that is not served.
    let mut wanted = one.rule(widget(&json!(2)));
    let of_version = |version: &str| {
        let fields = widget(&json!(2));
        [(source(resource, "one"), content(version, fields))].into()
    };
    wanted.intents = of_version("v1");
    one.alone.hub.want("r", wanted.clone());
    one.applied().await?;
    one.is_idle().await?;
    wanted.intents = of_version("v3");
    one.alone.hub.want("r", wanted);
    let message = one
        .alone
        .hub
        .wait_failed("r", Reason::KindNotServed)
        .await?;
    assert!(message.contains("in version v3"), "{message}");
    Ok(())
}
