//! Identifies a permission that the agent lacks, and the commands that grant it.
use crate::policy::Area;

/// The verbs of the agent for copies, as in the Roles of its chart.
const VERBS: &str = "get,list,watch,create,patch,delete";

/// A missing permission, as the API server reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    verb: String,
    resource: String,
    /// `None` for the scope of the cluster.
    namespace: Option<String>,
    user: Option<String>,
}

impl Missing {
    /// Parses the message of the API server. Returns `None` for any other text. It uses only words
    /// that are plain names.
    pub fn read(text: &str) -> Option<Self> {
        let (before, after) = text.split_once("\" cannot ")?;
        let user = before.rsplit_once("User \"")?.1;
        let (verb, after) = after.split_once(" resource \"")?;
        let (resource, after) = after.split_once('"')?;
        let namespace = match after.split_once(" in the namespace \"") {
            Some((_, after)) => Some(after.split_once('"')?.0.to_owned()),
            None if after.contains(" at the cluster scope") => None,
            None => return None,
        };
        let plain = |text: &str, limit| {
            (1..=limit).contains(&text.len())
                && text
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-._:@".contains(&byte))
        };
        let whole = plain(verb, 20)
            && plain(resource, 100)
            && namespace.as_deref().is_none_or(|name| plain(name, 63));
        whole.then(|| Self {
            verb: verb.to_owned(),
            resource: resource.to_owned(),
            namespace,
            user: plain(user, 200).then(|| user.to_owned()),
        })
    }

    /// Returns the permission to watch an area.
    pub fn of_watch(area: &Area) -> Self {
        let namespace = area.namespace.as_ref().map(ToString::to_string);
        Self {
            verb: "watch".to_owned(),
            resource: area.resource.to_owned(),
            namespace,
            user: None,
        }
    }

    /// Returns the message for a person: the missing permission, and the commands that grant it.
    ///
    /// The names differ from those of the chart's own Roles, so that a later chart does not collide
    /// with them. A `;` separates the commands, so that an existing object does not prevent the
    /// second one.
    pub fn sentence(&self) -> String {
        let Self {
            verb,
            resource,
            namespace,
            user,
        } = self;
        let plural = resource.split('.').next().unwrap_or_default();
        let name = format!("runnel-agent-{plural}");
        let verbs = if resource == "namespaces" {
            verb
        } else {
            VERBS
        };
        let subject = match user
            .as_deref()
            .map(|user| (user, user.strip_prefix("system:serviceaccount:")))
        {
            Some((_, Some(account))) => format!("--serviceaccount={account}"),
            Some((user, None)) => format!("--user={user}"),
            None => "--serviceaccount=NAMESPACE:runnel-agent".to_owned(),
        };
        let (place, role, at) = match namespace {
            Some(namespace) => (
                format!("in namespace {namespace}"),
                "role",
                format!(" -n {namespace}"),
            ),
            None => (
                "in the whole cluster".to_owned(),
                "clusterrole",
                String::new(),
            ),
        };
        format!(
            "the agent may not {verb} {resource} {place}; to grant it: \
             kubectl create {role} {name}{at} --verb={verbs} --resource={resource}; \
             kubectl create {role}binding {name}{at} --{role}={name} {subject}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_sentence_names_what_is_missing_and_what_grants_it() {
        let message = "secrets \"x\" is forbidden: User \"system:serviceaccount:runnel-system:runnel-agent\" cannot patch \
                    resource \"secrets\" in API group \"\" in the namespace \"team-c\"";
        let expected = "the agent may not patch secrets in namespace team-c; to grant it: \
            kubectl create role runnel-agent-secrets -n team-c --verb=get,list,watch,create,patch,delete --resource=secrets; \
            kubectl create rolebinding runnel-agent-secrets -n team-c --role=runnel-agent-secrets \
            --serviceaccount=runnel-system:runnel-agent";
        assert_eq!(Missing::read(message).unwrap().sentence(), expected);
        let message = "namespaces is forbidden: User \"anna@example.org\" cannot create resource \"namespaces\" in API group \
                    \"\" at the cluster scope";
        let sentence = Missing::read(message).unwrap().sentence();
        assert!(
            sentence.contains("may not create namespaces in the whole cluster"),
            "{sentence}"
        );
        assert!(
            sentence.contains("create clusterrole runnel-agent-namespaces --verb=create "),
            "{sentence}"
        );
        assert!(
            sentence.ends_with("--clusterrole=runnel-agent-namespaces --user=anna@example.org"),
            "{sentence}"
        );
    }

    #[test]
    fn a_long_namespace_leaves_room_for_the_whole_sentence() {
        let namespace = "n".repeat(63);
        let message = format!(
            "x: User \"system:serviceaccount:runnel-system:runnel-agent\" cannot watch resource \"configmaps\" in API \
             group \"\" in the namespace \"{namespace}\""
        );
        let sentence = Missing::read(&message).unwrap().sentence();
        assert!(
            sentence.len() <= runnel_proto::model::MESSAGE_LIMIT,
            "{}",
            sentence.len()
        );
    }

    proptest! {
        #[test]
        fn only_plain_names_are_accepted(text in "(.{0,10}|User \"| \" cannot | resource \"|\" in the namespace \"|at the cluster scope|\"){0,12}") {
            if let Some(missing) = Missing::read(&text) {
                prop_assert!(!missing.sentence().contains(['"', '\n', '$', '`', '&', '|']) && missing.sentence().matches(';').count() == 2);
            }
        }
    }
}
