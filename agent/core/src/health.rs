//! The health of a live object: what its own status reports. The rules are those of kstatus
//! (`sigs.k8s.io/cli-utils/pkg/kstatus/status`), in its order:
//!
//! 1. An object that is being deleted, or whose controller has observed an older generation, is in progress.
//! 2. The conditions `Reconciling` and `Stalled`, if one is true, decide alone.
//! 3. Kinds of Kubernetes have rules of their own.
//! 4. The condition `Ready` decides about other kinds.
//!
//! It differs from kstatus where a rollout that waits for health would otherwise be wrong:
//! - kstatus calls an object current of which it knows nothing. Here such an object has no health.
//! - A workload is in progress until its controller has set `observedGeneration`, as kstatus requires of a DaemonSet.
//! - A condition `Ready` that is about an older generation is in progress.
//! - A Pod that has failed and a claim whose volume is lost have failed.
//! - A Service has a health only as a load balancer, and is current with an address.
//! - Namespaces and APIServices have a health: they are current when they are active or available.
//! - A DaemonSet with `OnDelete` need not have updated its pods, as a StatefulSet.
//! - A claim that no provisioner was asked for is current: it may wait for the first Pod that uses it.
//! - A Pod that cannot be scheduled is in progress: kstatus compares its age with the clock.
use kube_core::{DynamicObject, ResourceExt};
use runnel_proto::model::{CopyHealth, HEALTH_MESSAGE_LIMIT, Kind, ObservedHealth, plain_text};
use serde_json::Value;

/// The deadline of a Deployment that has none: its controller then sets no condition `Progressing`.
const NO_DEADLINE: i64 = i32::MAX as i64;

/// Annotations with which the API server's controllers ask for the volume of a claim. Of a claim that waits for its first
/// consumer they do so only once a Pod that uses it has a node.
const PROVISIONERS: [&str; 2] = [
    "volume.beta.kubernetes.io/storage-provisioner",
    "volume.kubernetes.io/storage-provisioner",
];

/// Returns the health of a live object; `None` if it has none. ConfigMaps and Secrets have none.
pub fn observe(kind: &Kind, object: &DynamicObject) -> Option<ObservedHealth> {
    if !kind.content.is_owned() {
        return None;
    }
    // The deletion of what has run to its end is no change for the worse.
    let finished = is_finished(kind, object);
    let object = Object::of(object);
    let rules = KindRules::of(kind);
    if rules == KindRules::Service && object.text("/spec/type") != Some("LoadBalancer") {
        return None;
    }
    if rules == KindRules::Other && !object.conforms() {
        return None;
    }
    Some(
        object
            .generic()
            .filter(|_| !finished)
            .unwrap_or_else(|| object.of_kind(rules))
            .observed(),
    )
}

/// Whether an object has run to its end, well or not: a Job, or a Pod that is not started again.
pub fn is_finished(kind: &Kind, object: &DynamicObject) -> bool {
    let object = Object::of(object);
    match KindRules::of(kind) {
        KindRules::Job => {
            let is_true = |condition_type| object.condition(condition_type, "True").is_some();
            is_true("Complete") || is_true("Failed")
        }
        KindRules::Pod => matches!(object.text("/status/phase"), Some("Succeeded" | "Failed")),
        _ => false,
    }
}

/// The kinds with rules of their own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KindRules {
    ApiService,
    VolumeClaim,
    CustomResourceDefinition,
    DaemonSet,
    Deployment,
    DisruptionBudget,
    Job,
    Namespace,
    Pod,
    ReplicaSet,
    Service,
    StatefulSet,
    Other,
}

impl KindRules {
    fn of(kind: &Kind) -> Self {
        match &*kind.resource {
            "apiservices.apiregistration.k8s.io" => Self::ApiService,
            "persistentvolumeclaims" => Self::VolumeClaim,
            "customresourcedefinitions.apiextensions.k8s.io" => Self::CustomResourceDefinition,
            "daemonsets.apps" => Self::DaemonSet,
            "deployments.apps" => Self::Deployment,
            "poddisruptionbudgets.policy" => Self::DisruptionBudget,
            "jobs.batch" => Self::Job,
            "namespaces" => Self::Namespace,
            "pods" => Self::Pod,
            "replicasets.apps" => Self::ReplicaSet,
            "services" => Self::Service,
            "statefulsets.apps" => Self::StatefulSet,
            _ => Self::Other,
        }
    }
}

/// The result of the rules, with the message in parts.
enum Verdict {
    Current,
    InProgress(String),
    Failed(String),
}

impl Verdict {
    /// In progress, with how many of the desired ones are so.
    fn fewer(what: &str, number: i64, desired: i64) -> Self {
        Self::InProgress(format!("{what}: {number}/{desired}"))
    }

    fn observed(self) -> ObservedHealth {
        let (health, message) = match self {
            Self::Current => (CopyHealth::Current, String::new()),
            Self::InProgress(message) => (CopyHealth::InProgress, message),
            Self::Failed(message) => (CopyHealth::Failed, message),
        };
        ObservedHealth {
            health,
            message: plain_text(&message, HEALTH_MESSAGE_LIMIT).into(),
        }
    }
}

/// A condition of a status.
struct Condition<'a>(&'a Value);

impl<'a> Condition<'a> {
    fn text(&self, field: &str) -> &'a str {
        self.0[field].as_str().unwrap_or_default()
    }

    fn is(&self, condition_type: &str, status: &str) -> bool {
        self.text("type") == condition_type && self.text("status") == status
    }

    /// The reason and the message.
    fn why(&self) -> String {
        match (self.text("reason"), self.text("message")) {
            ("", message) => message.to_owned(),
            (reason, "") => reason.to_owned(),
            (reason, message) => format!("{reason}: {message}"),
        }
    }
}

/// A live object.
struct Object<'a> {
    data: &'a Value,
    generation: Option<i64>,
    terminating: bool,
    is_provisioned: bool,
}

impl<'a> Object<'a> {
    fn of(object: &'a DynamicObject) -> Self {
        Self {
            data: &object.data,
            generation: object.metadata.generation,
            terminating: object.metadata.deletion_timestamp.is_some(),
            is_provisioned: object
                .annotations()
                .keys()
                .any(|key| PROVISIONERS.contains(&key.as_str())),
        }
    }

    fn number(&self, path: &str) -> Option<i64> {
        self.data.pointer(path)?.as_i64()
    }

    /// Returns a number of the status; 0 if it is absent.
    fn count(&self, field: &str) -> i64 {
        self.data["status"][field].as_i64().unwrap_or_default()
    }

    fn text(&self, path: &str) -> Option<&'a str> {
        self.data.pointer(path)?.as_str()
    }

    fn conditions(&self) -> impl Iterator<Item = Condition<'a>> + use<'a> {
        let all = self.data.pointer("/status/conditions");
        let all = all.and_then(Value::as_array).into_iter().flatten();
        all.map(Condition)
    }

    /// Returns the condition of this type, if it has this status.
    fn condition(&self, condition_type: &str, status: &str) -> Option<Condition<'a>> {
        self.conditions()
            .find(|condition| condition.is(condition_type, status))
    }

    fn observed_generation(&self) -> Option<i64> {
        self.number("/status/observedGeneration")
    }

    /// Whether an object of a kind without rules has the status of a conforming one.
    fn conforms(&self) -> bool {
        let known = ["Ready", "Reconciling", "Stalled"];
        self.observed_generation().is_some()
            || self
                .conditions()
                .any(|condition| known.contains(&condition.text("type")))
    }

    /// Applies the rules for all kinds; `None` if they do not decide.
    fn generic(&self) -> Option<Verdict> {
        if self.terminating {
            return Some(Verdict::InProgress("it is being deleted".to_owned()));
        }
        if let (Some(generation), Some(observed)) = (self.generation, self.observed_generation())
            && generation != observed
        {
            return Some(Verdict::InProgress(format!(
                "generation is {generation}, and its controller has observed {observed}"
            )));
        }
        self.conditions().find_map(|condition| {
            if condition.is("Reconciling", "True") {
                Some(Verdict::InProgress(condition.why()))
            } else if condition.is("Stalled", "True") {
                Some(Verdict::Failed(condition.why()))
            } else {
                None
            }
        })
    }

    fn of_kind(&self, rules: KindRules) -> Verdict {
        match rules {
            KindRules::ApiService => self.available(),
            KindRules::VolumeClaim => self.volume_claim(),
            KindRules::CustomResourceDefinition => self.definition(),
            KindRules::DaemonSet => self.when_observed(Self::daemon_set),
            KindRules::Deployment => self.when_observed(Self::deployment),
            KindRules::DisruptionBudget => self.when_observed(|_| Verdict::Current),
            KindRules::Job => self.job(),
            KindRules::Namespace => self.namespace(),
            KindRules::Pod => self.pod(),
            KindRules::ReplicaSet => self.when_observed(Self::replica_set),
            KindRules::Service => self.load_balancer(),
            KindRules::StatefulSet => self.when_observed(Self::stateful_set),
            KindRules::Other => self.ready(),
        }
    }

    /// Applies rules to an object whose controller has observed it.
    fn when_observed(&self, rules: impl FnOnce(&Self) -> Verdict) -> Verdict {
        if self.observed_generation().is_none() {
            return Verdict::InProgress("its controller has not observed it".to_owned());
        }
        rules(self)
    }

    fn deployment(&self) -> Verdict {
        let deadline = self.number("/spec/progressDeadlineSeconds");
        let mut is_complete = deadline.unwrap_or(NO_DEADLINE) == NO_DEADLINE;
        for condition in self.conditions() {
            if condition.text("type") != "Progressing" {
                continue;
            }
            if condition.text("reason") == "ProgressDeadlineExceeded" {
                return Verdict::Failed(condition.why());
            }
            is_complete |= condition.is("Progressing", "True")
                && condition.text("reason") == "NewReplicaSetAvailable";
        }
        let desired = self.number("/spec/replicas").unwrap_or(1);
        let (all, updated) = (self.count("replicas"), self.count("updatedReplicas"));
        let (ready, available) = (self.count("readyReplicas"), self.count("availableReplicas"));
        if desired > all {
            Verdict::fewer("Replicas", all, desired)
        } else if desired > updated {
            Verdict::fewer("Updated", updated, desired)
        } else if all > desired {
            Verdict::InProgress(format!("Pending termination: {}", all - desired))
        } else if updated > available {
            Verdict::fewer("Available", available, updated)
        } else if desired > ready {
            Verdict::fewer("Ready", ready, desired)
        } else if !is_complete {
            Verdict::InProgress("the new ReplicaSet is not available".to_owned())
        } else if self.condition("Available", "True").is_none() {
            Verdict::InProgress("the Deployment is not available".to_owned())
        } else {
            Verdict::Current
        }
    }

    fn stateful_set(&self) -> Verdict {
        if self.text("/spec/updateStrategy/type") == Some("OnDelete") {
            return Verdict::Current;
        }
        let desired = self.number("/spec/replicas").unwrap_or(1);
        let (all, ready) = (self.count("replicas"), self.count("readyReplicas"));
        let (current, updated) = (self.count("currentReplicas"), self.count("updatedReplicas"));
        if desired > all {
            return Verdict::fewer("Replicas", all, desired);
        }
        if desired > ready {
            return Verdict::fewer("Ready", ready, desired);
        }
        if all > desired {
            return Verdict::InProgress(format!("Pending termination: {}", all - desired));
        }
        if let Some(partition) = self.number("/spec/updateStrategy/rollingUpdate/partition") {
            let desired = desired.saturating_sub(partition);
            return if updated < desired {
                Verdict::fewer("Updated", updated, desired)
            } else {
                Verdict::Current
            };
        }
        if desired > current {
            Verdict::fewer("Current", current, desired)
        } else if self.text("/status/currentRevision") != self.text("/status/updateRevision") {
            Verdict::InProgress("the updated revision is not the current one yet".to_owned())
        } else {
            Verdict::Current
        }
    }

    fn daemon_set(&self) -> Verdict {
        let Some(desired) = self.number("/status/desiredNumberScheduled") else {
            return Verdict::InProgress("its controller has not counted its nodes".to_owned());
        };
        let counts = [
            ("Current", "currentNumberScheduled"),
            ("Updated", "updatedNumberScheduled"),
            ("Available", "numberAvailable"),
            ("Ready", "numberReady"),
        ];
        let is_by_hand = self.text("/spec/updateStrategy/type") == Some("OnDelete");
        counts
            .into_iter()
            .filter(|(what, _)| !is_by_hand || *what != "Updated")
            .find(|(_, field)| desired > self.count(field))
            .map_or(Verdict::Current, |(what, field)| {
                Verdict::fewer(what, self.count(field), desired)
            })
    }

    fn replica_set(&self) -> Verdict {
        if let Some(failure) = self.condition("ReplicaFailure", "True") {
            return Verdict::InProgress(failure.why());
        }
        let desired = self.number("/spec/replicas").unwrap_or(1);
        let counts = [
            ("Labelled", "fullyLabeledReplicas"),
            ("Available", "availableReplicas"),
            ("Ready", "readyReplicas"),
        ];
        let missing = counts
            .into_iter()
            .find(|(_, field)| desired > self.count(field));
        let all = self.count("replicas");
        match missing {
            Some((what, field)) => Verdict::fewer(what, self.count(field), desired),
            None if all > desired => {
                Verdict::InProgress(format!("Pending termination: {}", all - desired))
            }
            None => Verdict::Current,
        }
    }

    /// A Job is current from its start on, until it fails.
    fn job(&self) -> Verdict {
        for condition in self.conditions() {
            if condition.is("Complete", "True") || condition.is("Suspended", "True") {
                return Verdict::Current;
            }
            if condition.is("Failed", "True") {
                return Verdict::Failed(condition.why());
            }
        }
        match self.text("/status/startTime") {
            Some(_) => Verdict::Current,
            None => Verdict::InProgress("the Job has not started".to_owned()),
        }
    }

    fn pod(&self) -> Verdict {
        match self.text("/status/phase") {
            Some("Succeeded") => Verdict::Current,
            Some("Failed") => Verdict::Failed("the Pod has failed".to_owned()),
            Some("Running") if self.condition("Ready", "True").is_some() => Verdict::Current,
            Some("Running") => match self.crash_loops() {
                loops if loops.is_empty() => {
                    Verdict::InProgress("the Pod is running and not ready".to_owned())
                }
                loops => Verdict::Failed(format!("CrashLoopBackOff: {}", loops.join(", "))),
            },
            _ => {
                let why = self.condition("PodScheduled", "False");
                Verdict::InProgress(
                    why.map_or_else(|| "the Pod is pending".to_owned(), |why| why.why()),
                )
            }
        }
    }

    /// Returns the containers of a Pod that end again and again.
    fn crash_loops(&self) -> Vec<&'a str> {
        let containers = self.data.pointer("/status/containerStatuses");
        let containers = containers.and_then(Value::as_array).into_iter().flatten();
        containers
            .filter(|container| {
                let waits = container.pointer("/state/waiting/reason");
                waits.and_then(Value::as_str) == Some("CrashLoopBackOff")
            })
            .filter_map(|container| container["name"].as_str())
            .collect()
    }

    fn volume_claim(&self) -> Verdict {
        let class = self.text("/spec/storageClassName");
        let has_class = class.is_some_and(|class| !class.is_empty());
        match self.text("/status/phase") {
            Some("Bound") => Verdict::Current,
            Some("Lost") => Verdict::Failed("the volume of the claim is lost".to_owned()),
            Some("Pending") if has_class && !self.is_provisioned => Verdict::Current,
            phase => Verdict::InProgress(format!(
                "the claim is not bound; its phase is {}",
                phase.unwrap_or("unknown")
            )),
        }
    }

    fn load_balancer(&self) -> Verdict {
        let addresses = self.data.pointer("/status/loadBalancer/ingress");
        match addresses.and_then(Value::as_array) {
            Some(addresses) if !addresses.is_empty() => Verdict::Current,
            _ => Verdict::InProgress("the load balancer has no address".to_owned()),
        }
    }

    fn definition(&self) -> Verdict {
        for condition in self.conditions() {
            if condition.is("NamesAccepted", "False") {
                return Verdict::Failed(condition.why());
            }
            if condition.is("Established", "False") && condition.text("reason") != "Installing" {
                return Verdict::Failed(condition.why());
            }
            if condition.is("Established", "True") {
                return Verdict::Current;
            }
        }
        Verdict::InProgress("the definition is being installed".to_owned())
    }

    fn namespace(&self) -> Verdict {
        match self.text("/status/phase") {
            Some("Active") => Verdict::Current,
            phase => Verdict::InProgress(format!("its phase is {}", phase.unwrap_or("unknown"))),
        }
    }

    fn available(&self) -> Verdict {
        if self.condition("Available", "True").is_some() {
            return Verdict::Current;
        }
        let why = self.condition("Available", "False");
        Verdict::InProgress(why.map_or_else(
            || "the API service is not available".to_owned(),
            |why| why.why(),
        ))
    }

    /// Without a condition `Ready` the observed generation is enough.
    fn ready(&self) -> Verdict {
        let Some(ready) = self
            .conditions()
            .find(|condition| condition.text("type") == "Ready")
        else {
            return Verdict::Current;
        };
        let observed = ready.0["observedGeneration"].as_i64();
        if let (Some(generation), Some(observed)) = (self.generation, observed)
            && generation != observed
        {
            return Verdict::InProgress(format!(
                "generation is {generation}, and its condition Ready is of {observed}"
            ));
        }
        if ready.text("status") == "True" {
            Verdict::Current
        } else {
            Verdict::InProgress(ready.why())
        }
    }
}

#[cfg(test)]
mod tests {
    use runnel_proto::model::{Scope, split_resource};
    use serde_json::json;

    use super::*;

    fn kind(resource: &str) -> Kind {
        let (plural, group) = split_resource(resource);
        Kind::new(group, "v1", "Any", plural, Scope::Namespaced)
    }

    fn health(resource: &str, object: Value) -> Option<(CopyHealth, String)> {
        let mut whole = json!({
            "apiVersion": "v1", "kind": "Any",
            "metadata": {"name": "x", "namespace": "a", "generation": 2},
        });
        let map = whole.as_object_mut().unwrap();
        for (field, value) in object.as_object().unwrap() {
            match field.as_str() {
                "metadata" => map["metadata"]
                    .as_object_mut()
                    .unwrap()
                    .extend(value.as_object().unwrap().clone()),
                _ => {
                    map.insert(field.clone(), value.clone());
                }
            }
        }
        let object: DynamicObject = serde_json::from_value(whole).unwrap();
        let observed = observe(&kind(resource), &object)?;
        Some((observed.health, observed.message.to_string()))
    }

    #[test]
    fn only_jobs_and_pods_at_their_end_have_finished() {
        let is = |resource: &str, status: Value| {
            let whole =
                json!({"apiVersion": "v1", "kind": "Any", "metadata": {}, "status": status});
            is_finished(&kind(resource), &serde_json::from_value(whole).unwrap())
        };
        let with = |condition: &str, status: &str| json!({"conditions": [{"type": condition, "status": status}]});
        for condition in ["Complete", "Failed"] {
            assert!(is("jobs.batch", with(condition, "True")));
            assert!(!is("jobs.batch", with(condition, "False")));
            assert!(!is("widgets.example.org", with(condition, "True")));
        }
        assert!(!is("jobs.batch", with("Suspended", "True")) && !is("jobs.batch", json!(null)));
        assert!(
            is("pods", json!({"phase": "Succeeded"})) && is("pods", json!({"phase": "Failed"}))
        );
        assert!(
            !is("pods", json!({"phase": "Running"}))
                && !is("jobs.batch", json!({"phase": "Failed"}))
        );
    }

    fn current(resource: &str, object: Value) {
        let found = health(resource, object.clone());
        assert_eq!(
            found,
            Some((CopyHealth::Current, String::new())),
            "{resource} {object}"
        );
    }

    fn in_progress(resource: &str, object: Value, message: &str) {
        let found = health(resource, object.clone());
        let expected = Some((CopyHealth::InProgress, message.to_owned()));
        assert_eq!(found, expected, "{resource} {object}");
    }

    fn failed(resource: &str, object: Value, message: &str) {
        let found = health(resource, object.clone());
        let expected = Some((CopyHealth::Failed, message.to_owned()));
        assert_eq!(found, expected, "{resource} {object}");
    }

    fn condition(condition_type: &str, status: &str, reason: &str, message: &str) -> Value {
        json!({"type": condition_type, "status": status, "reason": reason, "message": message})
    }

    #[test]
    fn objects_without_a_known_status_have_no_health() {
        let ready = json!({"status": {"conditions": [condition("Ready", "True", "", "")]}});
        for resource in ["configmaps", "secrets"] {
            assert_eq!(health(resource, ready.clone()), None);
        }
        for object in [
            json!({}),
            json!({"status": {}}),
            json!({"status": {"conditions": "odd"}}),
            json!({"status": {"conditions": [1, {}, {"type": 3}]}}),
            json!({"status": "odd", "spec": []}),
            json!({"status": {"conditions": [condition("Accepted", "True", "", "")]}}),
        ] {
            assert_eq!(health("gateways.example.org", object), None);
        }
        assert_eq!(
            health("services", json!({"spec": {"type": "ClusterIP"}})),
            None
        );
        assert_eq!(health("cronjobs.batch", json!({"status": {}})), None);
    }

    #[test]
    fn generation_and_standard_conditions_decide_first() {
        let deployment = |status: Value| json!({"spec": {"replicas": 0}, "status": status});
        in_progress(
            "deployments.apps",
            deployment(json!({"observedGeneration": 1})),
            "generation is 2, and its controller has observed 1",
        );
        let stalled = condition("Stalled", "True", "NoQuota", "no room");
        let status = json!({"observedGeneration": 2, "conditions": [stalled]});
        failed(
            "deployments.apps",
            deployment(status.clone()),
            "NoQuota: no room",
        );
        failed(
            "widgets.example.org",
            deployment(status),
            "NoQuota: no room",
        );
        let reconciling = condition("Reconciling", "True", "", "at it");
        in_progress(
            "widgets.example.org",
            json!({"status": {"conditions": [reconciling, condition("Stalled", "True", "", "x")]}}),
            "at it",
        );
        in_progress(
            "widgets.example.org",
            json!({
                "metadata": {"deletionTimestamp": "2024-01-01T00:00:00Z"},
                "status": {"observedGeneration": 2},
            }),
            "it is being deleted",
        );
    }

    #[test]
    fn custom_resources_follow_their_condition_ready() {
        let widget = |conditions: Value| json!({"status": {"conditions": conditions}});
        let ready = |status: &str| condition("Ready", status, "Why", "this");
        current(
            "widgets.example.org",
            json!({"status": {"observedGeneration": 2}}),
        );
        current("widgets.example.org", widget(json!([ready("True")])));
        for status in ["False", "Unknown", ""] {
            in_progress(
                "widgets.example.org",
                widget(json!([ready(status)])),
                "Why: this",
            );
        }
        let mut old = ready("True");
        old["observedGeneration"] = json!(1);
        in_progress(
            "widgets.example.org",
            widget(json!([old])),
            "generation is 2, and its condition Ready is of 1",
        );
    }

    #[test]
    fn deployment_is_current_when_the_new_replicas_are_available() {
        let available = condition("Available", "True", "MinimumReplicasAvailable", "");
        let complete = condition("Progressing", "True", "NewReplicaSetAvailable", "");
        let with = |counts: Value, conditions: Value| {
            let mut status = json!({"observedGeneration": 2, "conditions": conditions});
            status
                .as_object_mut()
                .unwrap()
                .extend(counts.as_object().unwrap().clone());
            json!({"spec": {"replicas": 2, "progressDeadlineSeconds": 600}, "status": status})
        };
        let counts = |all: i64, updated: i64, available: i64, ready: i64| json!({"replicas": all, "updatedReplicas": updated, "availableReplicas": available, "readyReplicas": ready});
        let all = "deployments.apps";
        let both = json!([available, complete]);
        current(all, with(counts(2, 2, 2, 2), both.clone()));
        in_progress(
            all,
            json!({"spec": {}}),
            "its controller has not observed it",
        );
        for (given, message) in [
            (counts(1, 1, 1, 1), "Replicas: 1/2"),
            (counts(3, 1, 2, 2), "Updated: 1/2"),
            (counts(3, 2, 2, 2), "Pending termination: 1"),
            (counts(2, 2, 1, 1), "Available: 1/2"),
            (counts(2, 2, 2, 1), "Ready: 1/2"),
        ] {
            in_progress(all, with(given, both.clone()), message);
        }
        let full = counts(2, 2, 2, 2);
        in_progress(
            all,
            with(
                full.clone(),
                json!([condition("Available", "True", "", "")]),
            ),
            "the new ReplicaSet is not available",
        );
        in_progress(
            all,
            with(
                full.clone(),
                json!([condition(
                    "Progressing",
                    "True",
                    "NewReplicaSetAvailable",
                    ""
                )]),
            ),
            "the Deployment is not available",
        );
        let exceeded = condition(
            "Progressing",
            "False",
            "ProgressDeadlineExceeded",
            "api-1 has timed out progressing.",
        );
        failed(
            all,
            with(full.clone(), json!([exceeded])),
            "ProgressDeadlineExceeded: api-1 has timed out progressing.",
        );
        // Without a deadline the controller sets no condition Progressing.
        let mut endless = with(full, json!([condition("Available", "True", "", "")]));
        endless["spec"]["progressDeadlineSeconds"] = json!(i32::MAX);
        current(all, endless);
    }

    #[test]
    fn stateful_set_waits_for_its_revision_or_partition() {
        let with = |spec: Value, status: Value| {
            let mut status = status;
            status["observedGeneration"] = json!(2);
            json!({"spec": spec, "status": status})
        };
        let all = "statefulsets.apps";
        let full = json!({"replicas": 2, "readyReplicas": 2, "currentReplicas": 2, "updatedReplicas": 2, "currentRevision": "a", "updateRevision": "a"});
        current(all, with(json!({"replicas": 2}), full.clone()));
        current(
            all,
            with(json!({"updateStrategy": {"type": "OnDelete"}}), json!({})),
        );
        in_progress(all, with(json!({}), json!({})), "Replicas: 0/1");
        in_progress(
            all,
            with(
                json!({"replicas": 2}),
                json!({"replicas": 2, "readyReplicas": 1}),
            ),
            "Ready: 1/2",
        );
        in_progress(
            all,
            with(json!({"replicas": 1}), full.clone()),
            "Pending termination: 1",
        );
        let mut other = full.clone();
        other["updateRevision"] = json!("b");
        in_progress(
            all,
            with(json!({"replicas": 2}), other),
            "the updated revision is not the current one yet",
        );
        let partition =
            json!({"replicas": 2, "updateStrategy": {"rollingUpdate": {"partition": 1}}});
        let mut part = full;
        part["updatedReplicas"] = json!(0);
        in_progress(all, with(partition.clone(), part.clone()), "Updated: 0/1");
        part["updatedReplicas"] = json!(1);
        current(all, with(partition, part));
    }

    #[test]
    fn daemon_sets_and_replica_sets_count_their_pods() {
        let daemons = |status: Value| json!({"status": status});
        in_progress(
            "daemonsets.apps",
            daemons(json!({})),
            "its controller has not observed it",
        );
        in_progress(
            "daemonsets.apps",
            daemons(json!({"observedGeneration": 2})),
            "its controller has not counted its nodes",
        );
        current(
            "daemonsets.apps",
            daemons(json!({"observedGeneration": 2, "desiredNumberScheduled": 0})),
        );
        let mut status = json!({"observedGeneration": 2, "desiredNumberScheduled": 1});
        for (what, field) in [
            ("Current", "currentNumberScheduled"),
            ("Updated", "updatedNumberScheduled"),
            ("Available", "numberAvailable"),
            ("Ready", "numberReady"),
        ] {
            in_progress(
                "daemonsets.apps",
                daemons(status.clone()),
                &format!("{what}: 0/1"),
            );
            status[field] = json!(1);
        }
        current("daemonsets.apps", daemons(status.clone()));
        status["updatedNumberScheduled"] = json!(0);
        let by_hand = json!({"spec": {"updateStrategy": {"type": "OnDelete"}}, "status": status});
        current("daemonsets.apps", by_hand);

        let full = json!({"observedGeneration": 2, "replicas": 1, "fullyLabeledReplicas": 1, "availableReplicas": 1, "readyReplicas": 1});
        current("replicasets.apps", daemons(full.clone()));
        let mut failing = full;
        failing["conditions"] =
            json!([condition("ReplicaFailure", "True", "FailedCreate", "quota")]);
        in_progress("replicasets.apps", daemons(failing), "FailedCreate: quota");
        in_progress(
            "replicasets.apps",
            daemons(json!({"observedGeneration": 2})),
            "Labelled: 0/1",
        );
    }

    #[test]
    fn job_is_current_from_its_start_until_it_fails() {
        let job = |status: Value| json!({"status": status});
        in_progress("jobs.batch", job(json!({})), "the Job has not started");
        current(
            "jobs.batch",
            job(json!({"startTime": "2024-01-01T00:00:00Z", "active": 1})),
        );
        let deleted = json!({
            "metadata": {"deletionTimestamp": "2024-01-01T00:00:00Z"},
            "status": {"conditions": [condition("Complete", "True", "", "")]},
        });
        current("jobs.batch", deleted);
        for done in ["Complete", "Suspended"] {
            current(
                "jobs.batch",
                job(json!({"conditions": [condition(done, "True", "", "")]})),
            );
        }
        let broken = condition(
            "Failed",
            "True",
            "BackoffLimitExceeded",
            "Job has reached the specified backoff limit",
        );
        failed(
            "jobs.batch",
            job(json!({"startTime": "2024-01-01T00:00:00Z", "conditions": [broken]})),
            "BackoffLimitExceeded: Job has reached the specified backoff limit",
        );
    }

    #[test]
    fn pods_claims_and_services_follow_their_phase() {
        let phase = |phase: &str| json!({"status": {"phase": phase}});
        current("pods", phase("Succeeded"));
        failed("pods", phase("Failed"), "the Pod has failed");
        in_progress("pods", phase("Pending"), "the Pod is pending");
        in_progress("pods", phase("Running"), "the Pod is running and not ready");
        current(
            "pods",
            json!({"status": {"phase": "Running", "conditions": [condition("Ready", "True", "", "")]}}),
        );
        let loops = json!([{"name": "a", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}, {"name": "b", "state": {}}]);
        failed(
            "pods",
            json!({"status": {"phase": "Running", "containerStatuses": loops}}),
            "CrashLoopBackOff: a",
        );
        let unscheduled = condition("PodScheduled", "False", "Unschedulable", "0/3 nodes");
        in_progress(
            "pods",
            json!({"status": {"phase": "Pending", "conditions": [unscheduled]}}),
            "Unschedulable: 0/3 nodes",
        );
        current("persistentvolumeclaims", phase("Bound"));
        in_progress(
            "persistentvolumeclaims",
            phase("Pending"),
            "the claim is not bound; its phase is Pending",
        );
        let mut waiting =
            json!({"spec": {"storageClassName": "local"}, "status": {"phase": "Pending"}});
        current("persistentvolumeclaims", waiting.clone());
        waiting["metadata"] = json!({"annotations": {PROVISIONERS[1]: "example.org/disks"}});
        in_progress(
            "persistentvolumeclaims",
            waiting,
            "the claim is not bound; its phase is Pending",
        );
        failed(
            "persistentvolumeclaims",
            phase("Lost"),
            "the volume of the claim is lost",
        );
        let balanced = |status: Value| json!({"spec": {"type": "LoadBalancer"}, "status": status});
        in_progress(
            "services",
            balanced(json!({"loadBalancer": {}})),
            "the load balancer has no address",
        );
        current(
            "services",
            balanced(json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}})),
        );
    }

    #[test]
    fn kinds_of_the_cluster_are_current_when_they_are_usable() {
        let with = |conditions: Value| json!({"status": {"conditions": conditions}});
        let crd = "customresourcedefinitions.apiextensions.k8s.io";
        in_progress(crd, json!({}), "the definition is being installed");
        current(crd, with(json!([condition("Established", "True", "", "")])));
        in_progress(
            crd,
            with(json!([condition("Established", "False", "Installing", "")])),
            "the definition is being installed",
        );
        failed(
            crd,
            with(json!([condition("NamesAccepted", "False", "Taken", "x")])),
            "Taken: x",
        );
        current("namespaces", json!({"status": {"phase": "Active"}}));
        in_progress("namespaces", json!({}), "its phase is unknown");
        let service = "apiservices.apiregistration.k8s.io";
        current(
            service,
            with(json!([condition("Available", "True", "", "")])),
        );
        in_progress(
            service,
            with(json!([condition(
                "Available",
                "False",
                "MissingEndpoints",
                "none"
            )])),
            "MissingEndpoints: none",
        );
        let budget = "poddisruptionbudgets.policy";
        current(budget, json!({"status": {"observedGeneration": 2}}));
        in_progress(budget, json!({}), "its controller has not observed it");
    }

    #[test]
    fn message_is_one_bounded_line() {
        let long = format!("first\nsecond\u{202e}{}", "é".repeat(400));
        let stalled = condition("Stalled", "True", "", &long);
        let (_, message) = health(
            "widgets.example.org",
            json!({"status": {"conditions": [stalled]}}),
        )
        .unwrap();
        assert!(message.len() <= HEALTH_MESSAGE_LIMIT, "{}", message.len());
        assert!(message.starts_with("first") && !message.contains(['\n', '\u{202e}']));
    }
}
