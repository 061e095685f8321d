//! Problems of pods and joins, with hints.
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition};
use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod};
use serde_json::Value;

use super::objects::{HasConditions, member_name};
use runnel_api::MemberCluster;
use runnel_api::conditions::ConditionType;

/// A problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The problem.
    pub message: String,
    /// The fix.
    pub hint: String,
}

impl Finding {
    fn new(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            message: what.into(),
            hint: hint.into(),
        }
    }
}

/// A Deployment of ours and what belongs to it.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    /// The Deployment, if there is one.
    pub deployment: Option<Deployment>,
    /// Its pods.
    pub pods: Vec<Pod>,
    /// Events about it and them.
    pub events: Vec<Event>,
    /// The end of the log, where a pod has one.
    pub log: Vec<String>,
}

/// The reachability of an address of the hub from this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reachability {
    /// The hub answers, and it is the right one.
    Hub,
    /// Nothing listens.
    Refused,
    /// No answer at all.
    Timeout,
    /// The name cannot be resolved.
    Unknown,
    /// Something else answers.
    Other(String),
}

/// Understands why a connection failed.
pub fn reach_of(cause: &str, is_tls: bool) -> Reachability {
    let lower = cause.to_lowercase();
    if is_tls {
        return Reachability::Other(cause.to_owned());
    }
    if lower.contains("refused") {
        Reachability::Refused
    } else if ["lookup", "not known", "resolve", "no address"]
        .iter()
        .any(|word| lower.contains(word))
    {
        Reachability::Unknown
    } else if ["timed out", "did not answer", "unreachable", "no route"]
        .iter()
        .any(|word| lower.contains(word))
    {
        Reachability::Timeout
    } else {
        Reachability::Other(cause.to_owned())
    }
}

/// Returns the problem with an address of the hub; `None` if it answers.
pub fn address(address: &str, reach: &Reachability) -> Option<Finding> {
    let change = "advertise the right one with `kubectl runnel install --advertise HOST:PORT`";
    Some(match reach {
        Reachability::Hub => return None,
        Reachability::Refused => Finding::new(
            format!("the hub's address {address} refuses connections"),
            format!(
                "does the hub run, and is this its Service's load balancer or node port? Else {change}"
            ),
        ),
        Reachability::Timeout => Finding::new(
            format!("the hub's address {address} does not answer: something drops the packets"),
            format!("open TCP to it in the firewall or security group, or {change}"),
        ),
        Reachability::Unknown => Finding::new(
            format!("the name in the hub's address {address} is not known"),
            format!("correct the DNS record, or {change}"),
        ),
        Reachability::Other(why) => Finding::new(
            format!("what answers at {address} is not this hub ({why})"),
            format!(
                "a load balancer must pass TLS through untouched, and the address must be this hub's: {change}"
            ),
        ),
    })
}

/// Returns the problems of a Deployment, the most significant first. `name` as in `deployment/NAME`
/// of `namespace`.
pub fn workload(seen: &Workload, name: &str, namespace: &str) -> Vec<Finding> {
    let Some(deployment) = &seen.deployment else {
        let hint = "install it; `helm list -A` lists the installed charts";
        return vec![Finding::new(
            format!("there is no Deployment {name} in {namespace}"),
            hint,
        )];
    };
    let mut found = Vec::new();
    let failure = replica_failure(deployment);
    if let Some(failure) = failure {
        let hint =
            "what refuses the pod is named there: a quota, Pod Security, or an admission webhook";
        found.push(Finding::new(
            format!(
                "no pod of {name} can be made: {}",
                failure.message.as_deref().unwrap_or_default()
            ),
            hint,
        ));
    }
    found.extend(seen.pods.iter().filter_map(|one| pod(one, namespace)));
    found.extend(last_log_message(&seen.log).map(|words| {
        Finding::new(
            format!("last log message of {name}: {words}"),
            "do what it says",
        )
    }));
    let replicas = wanted_replicas(deployment);
    if seen.pods.is_empty() && failure.is_none() && replicas > 0 {
        let hint = format!(
            "check `kubectl -n {namespace} describe deployment {name}`: do the cluster's controllers run?"
        );
        found.push(Finding::new(format!("there is no pod of {name} yet"), hint));
    }
    if replicas == 0 {
        let hint = format!("kubectl -n {namespace} scale deployment {name} --replicas=1");
        found.push(Finding::new(format!("{name} is scaled to 0"), hint));
    }
    let mut warnings: Vec<&Event> = seen
        .events
        .iter()
        .filter(|event| event.type_.as_deref() == Some("Warning"))
        .collect();
    warnings.sort_by_key(|event| happened(event));
    if let Some(event) = warnings.last() {
        let reason = event.reason.as_deref().unwrap_or_default();
        let message = event.message.as_deref().unwrap_or_default();
        found.push(Finding::new(
            format!("event {reason}: {message}"),
            "see the event",
        ));
    }
    found
}

/// The replicas that a Deployment asks for; 1 where it names none, as Kubernetes has it.
pub fn wanted_replicas(deployment: &Deployment) -> i32 {
    let spec = deployment.spec.as_ref();
    spec.and_then(|spec| spec.replicas).unwrap_or(1)
}

/// Whether a container of a pod waits to be started, perhaps again: its log is that of the last run.
pub fn has_waiting_container(pod: &Pod) -> bool {
    container_statuses(pod).iter().any(|container| {
        let state = container.state.as_ref();
        state.is_some_and(|state| state.waiting.is_some())
    })
}

fn container_statuses(pod: &Pod) -> &[ContainerStatus] {
    let status = pod.status.as_ref();
    status
        .and_then(|status| status.container_statuses.as_deref())
        .unwrap_or_default()
}

fn replica_failure(deployment: &Deployment) -> Option<&DeploymentCondition> {
    let status = deployment.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == "ReplicaFailure" && condition.status == "True")
}

fn happened(event: &Event) -> Option<Timestamp> {
    let last = event.last_timestamp.as_ref().map(|time| time.0);
    last.or_else(|| event.event_time.as_ref().map(|time| time.0))
}

fn pod(pod: &Pod, namespace: &str) -> Option<Finding> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let unscheduled = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    if let Some(scheduled) = unscheduled {
        let hint = "give it a node that fits: capacity, taints (values: tolerations, nodeSelector, resources)";
        return Some(Finding::new(
            format!(
                "pod {name} finds no node: {}",
                scheduled.message.as_deref().unwrap_or_default()
            ),
            hint,
        ));
    }
    let container = container_statuses(pod).first()?;
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().unwrap_or_default();
    let message = waiting.message.as_deref().unwrap_or_default();
    let image = &container.image;
    let logs = format!("read `kubectl -n {namespace} logs {name} --previous`");
    match reason {
        "ErrImagePull" | "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull" => {
            Some(Finding::new(
                format!("pod {name} cannot have its image {image}: {message}"),
                "give --image-registry (and --image-pull-secret) of a registry that the nodes reach, or load the image into them",
            ))
        }
        "CrashLoopBackOff" => Some(Finding::new(
            format!(
                "pod {name} ends again and again (exit code {})",
                container
                    .last_state
                    .as_ref()
                    .and_then(|state| state.terminated.as_ref())
                    .map_or(0, |ended| ended.exit_code)
            ),
            logs,
        )),
        "" | "ContainerCreating" | "PodInitializing" => None,
        other => Some(Finding::new(
            format!("pod {name}: {other}: {message}"),
            logs,
        )),
    }
}

/// Returns the last warning or error of a log.
fn last_log_message(log: &[String]) -> Option<String> {
    let complaint = |line: &String| -> Option<String> {
        let Ok(entry) = serde_json::from_str::<Value>(line) else {
            return line.starts_with("runnel-").then(|| line.trim().to_owned());
        };
        let words = [&entry["message"], &entry["fields"]["message"]]
            .into_iter()
            .filter_map(Value::as_str)
            .find(|words| !words.is_empty())?;
        let level = entry["level"].as_str().unwrap_or_default();
        matches!(level, "WARN" | "ERROR").then(|| words.to_owned())
    };
    log.iter().rev().find_map(complaint)
}

/// The facts about an incomplete join.
#[derive(Clone, Debug, Default)]
pub struct JoinFacts {
    /// The `MemberCluster`, if there is one.
    pub member: Option<MemberCluster>,
    /// Whether the token was redeemed.
    pub redeemed: bool,
    /// Whether the token is invalid after wrong secrets.
    pub is_locked_out: bool,
    /// The agent.
    pub agent: Workload,
    /// The addresses in the join string, as they answer here.
    pub addresses: Vec<(String, Reachability)>,
}

/// Why a cluster is not connected, the most telling first; never empty.
pub fn join(facts: &JoinFacts, namespace: &str, now: Timestamp) -> Vec<Finding> {
    let mut found = Vec::new();
    let Some(member) = &facts.member else {
        found.push(Finding::new(
            "the MemberCluster was deleted on the hub",
            "join again",
        ));
        return found;
    };
    let name = member_name(member);
    if !member.spec.accepted {
        let hint = format!(
            "kubectl patch member {name} --type=merge -p '{{\"spec\":{{\"accepted\":true}}}}'"
        );
        found.push(Finding::new(
            format!("the hub does not accept {name} (spec.accepted is false)"),
            hint,
        ));
    }
    if member.spec.leaving {
        let hint = format!(
            "kubectl patch member {name} --type=merge -p '{{\"spec\":{{\"leaving\":false}}}}'"
        );
        found.push(Finding::new(
            format!("{name} is leaving (spec.leaving is true)"),
            hint,
        ));
    }
    let join = member.spec.join.as_ref();
    let expired = join.is_some_and(|join| join.expires_at.0 <= now);
    if expired && !facts.redeemed {
        found.push(Finding::new(
            "the join string has expired before it was used",
            "join again",
        ));
    }
    if facts.is_locked_out {
        let what = "five wrong secrets were tried with this token, so it is invalid: find out who tried them";
        found.push(Finding::new(what, "join again"));
    }
    found.extend(workload(&facts.agent, "runnel-agent", namespace));
    let wrong: Vec<Finding> = facts
        .addresses
        .iter()
        .filter_map(|(at, reach)| address(at, reach))
        .collect();
    let all_wrong = wrong.len() == facts.addresses.len();
    found.extend(wrong);
    if all_wrong && !facts.addresses.is_empty() {
        // If the agent cannot reach the hub, the log of its pod only shows the effect.
        found.rotate_right(facts.addresses.len());
    }
    if facts.redeemed && !member.condition(ConditionType::Connected).is_true() {
        let hint = format!(
            "check the agent's log in the member: kubectl -n {namespace} logs deployment/runnel-agent"
        );
        found.push(Finding::new(
            "the agent has joined, but has no stream to the hub",
            hint,
        ));
    }
    if found.is_empty() {
        let hint = format!(
            "the hub's address answers from here, so look from there: kubectl -n {namespace} logs deployment/runnel-agent \
             in the member; a firewall or proxy (--https-proxy) may be in between"
        );
        found.push(Finding::new("the agent has not come to the hub", hint));
    }
    found
}

/// Returns the first problem in one line.
pub fn in_short(found: &[Finding]) -> String {
    let first = found
        .first()
        .map(|finding| finding.message.as_str())
        .unwrap_or("waiting");
    let line: String = first.chars().take(110).collect();
    line.lines().next().unwrap_or_default().to_owned()
}

/// Returns all problems as text.
pub fn in_full(found: &[Finding]) -> String {
    found
        .iter()
        .map(|finding| format!("  - {}\n    -> {}", finding.message, finding.hint))
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn typed<T: serde::de::DeserializeOwned>(object: Value) -> T {
        serde_json::from_value(object).unwrap()
    }

    fn one_replica() -> Option<Deployment> {
        Some(typed(json!({"spec": {"replicas": 1}})))
    }

    fn running() -> Workload {
        Workload {
            deployment: one_replica(),
            pods: vec![Pod::default()],
            ..Workload::default()
        }
    }

    fn messages(found: &[Finding]) -> Vec<&str> {
        found
            .iter()
            .map(|finding| finding.message.as_str())
            .collect()
    }

    #[test]
    fn causes_are_distinguished() {
        assert_eq!(
            reach_of("Connection refused (os error 111)", false),
            Reachability::Refused
        );
        assert_eq!(
            reach_of("failed to lookup address information", false),
            Reachability::Unknown
        );
        assert_eq!(
            reach_of("the hub at x did not answer within 5 seconds", false),
            Reachability::Timeout
        );
        assert_eq!(reach_of("No route to host", false), Reachability::Timeout);
        assert!(matches!(
            reach_of("TLS ... refused", true),
            Reachability::Other(_)
        ));
        for (reach, word) in [
            (Reachability::Refused, "Service"),
            (Reachability::Timeout, "firewall"),
            (Reachability::Unknown, "DNS"),
            (Reachability::Other("bad certificate".into()), "untouched"),
        ] {
            let found = address("hub:1", &reach).unwrap();
            assert!(
                found.hint.contains(word)
                    && found.hint.contains("--advertise")
                    && found.message.contains("hub:1")
            );
        }
        assert_eq!(address("hub:1", &Reachability::Hub), None);
    }

    #[test]
    fn pods_that_do_not_start_are_explained() {
        let waiting = |reason: &str| {
            let status = json!({"image": "r/i:1", "state": {"waiting": {"reason": reason, "message": "m"}}, "lastState": {"terminated": {"exitCode": 1}}});
            let pods = typed(
                json!([{"metadata": {"name": "p"}, "status": {"containerStatuses": [status]}}]),
            );
            workload(
                &Workload { pods, ..running() },
                "runnel-agent",
                "runnel-system",
            )
        };
        assert_eq!(
            messages(&waiting("ImagePullBackOff")),
            ["pod p cannot have its image r/i:1: m"]
        );
        assert!(
            waiting("ImagePullBackOff")[0]
                .hint
                .contains("--image-registry")
        );
        assert_eq!(
            messages(&waiting("CrashLoopBackOff")),
            ["pod p ends again and again (exit code 1)"]
        );
        assert_eq!(
            messages(&waiting("CreateContainerConfigError")),
            ["pod p: CreateContainerConfigError: m"]
        );
        assert!(waiting("ContainerCreating").is_empty());

        let scheduled = json!({"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"});
        let pods =
            typed(json!([{"metadata": {"name": "p"}, "status": {"conditions": [scheduled]}}]));
        let found = workload(
            &Workload { pods, ..running() },
            "runnel-agent",
            "runnel-system",
        );
        assert_eq!(
            messages(&found),
            ["pod p finds no node: 0/3 nodes are available"]
        );

        let failure =
            json!({"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"});
        let deployment =
            typed(json!({"spec": {"replicas": 1}, "status": {"conditions": [failure]}}));
        let found = workload(
            &Workload {
                deployment: Some(deployment),
                ..Workload::default()
            },
            "runnel-agent",
            "runnel-system",
        );
        assert_eq!(
            messages(&found),
            ["no pod of runnel-agent can be made: exceeded quota"]
        );
        let none = workload(&Workload::default(), "runnel-agent", "runnel-system");
        assert_eq!(
            messages(&none),
            ["there is no Deployment runnel-agent in runnel-system"]
        );
    }

    #[test]
    fn waiting_container_has_its_log_in_the_last_run() {
        let pod = |state: Value| -> Pod {
            typed(json!({"status": {"containerStatuses": [{"state": state}]}}))
        };
        assert!(has_waiting_container(&pod(
            json!({"waiting": {"reason": "CrashLoopBackOff"}})
        )));
        assert!(!has_waiting_container(&pod(json!({"running": {}}))));
        assert!(!has_waiting_container(&Pod::default()));
    }

    #[test]
    fn last_warning_of_the_log_is_shown() {
        let log = [
            r#"{"level":"WARN","message":"old"}"#,
            r#"{"level":"ERROR","fields":{"message":"the hub refused: the token has expired"}}"#,
            r#"{"level":"INFO","message":"fine"}"#,
        ];
        let log: Vec<String> = log.iter().map(|line| (*line).to_owned()).collect();
        let found = workload(&Workload { log, ..running() }, "runnel-agent", "n");
        assert_eq!(
            messages(&found),
            ["last log message of runnel-agent: the hub refused: the token has expired"]
        );
    }

    #[test]
    fn join_failure_names_the_main_cause_first() {
        let member = |accepted: bool, ends: &str| -> Option<MemberCluster> {
            Some(typed(
                json!({"metadata": {"name": "eu-1"}, "spec": {"accepted": accepted, "join": {"tokenHash": "h", "expiresAt": ends}}}),
            ))
        };
        let facts = JoinFacts {
            member: member(true, "2026-01-01T01:00:00Z"),
            agent: running(),
            ..JoinFacts::default()
        };
        assert!(in_short(&join(&facts, "n", now())).starts_with("the agent has not come"));

        let addresses = vec![("hub:1".to_owned(), Reachability::Timeout)];
        let agent = Workload {
            deployment: one_replica(),
            ..Workload::default()
        };
        let found = join(
            &JoinFacts {
                addresses,
                agent,
                ..facts.clone()
            },
            "n",
            now(),
        );
        assert_eq!(
            messages(&found),
            [
                "the hub's address hub:1 does not answer: something drops the packets",
                "there is no pod of runnel-agent yet"
            ]
        );
        assert!(
            in_full(&found).starts_with("  - the hub's address hub:1"),
            "{}",
            in_full(&found)
        );

        let found = join(
            &JoinFacts {
                member: member(false, "2025-01-01T01:00:00Z"),
                ..facts.clone()
            },
            "n",
            now(),
        );
        assert!(found[0].message.contains("spec.accepted") && found[1].message.contains("expired"));
        assert!(
            join(&JoinFacts::default(), "n", now())[0]
                .message
                .contains("deleted")
        );
    }
}
