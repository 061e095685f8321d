//! Closed lists of the words in statuses, Events and answers, chosen by type.

/// Declares an enum of words, with `ALL` of them in order, `as_str` and `parse`. Each word is
/// written once, so that none of these can lack one. A word is the CamelCase name of its variant,
/// unless the list gives another one.
#[macro_export]
macro_rules! closed_list {
    ($(#[$of_all:meta])* pub enum $name:ident { $($(#[$of_one:meta])* $word:ident,)+ }) => {
        $crate::closed_list! {
            $(#[$of_all])*
            pub enum $name { $($(#[$of_one])* $word = stringify!($word),)+ }
        }
    };
    ($(#[$of_all:meta])* pub enum $name:ident { $($(#[$of_one:meta])* $word:ident = $text:expr,)+ }) => {
        $(#[$of_all])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$of_one])* $word,)+
        }

        impl $name {
            /// Every one, in the order in which they are declared.
            pub const ALL: [$name; [$($text),+].len()] = [$($name::$word),+];

            /// Every one, in the same order.
            pub fn all() -> impl Iterator<Item = $name> {
                Self::ALL.into_iter()
            }

            /// The word itself.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($name::$word => $text,)+
                }
            }

            /// The one of this word.
            pub fn parse(word: &str) -> Option<$name> {
                $name::all().find(|one| one.as_str() == word)
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, out: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                out.write_str(self.as_str())
            }
        }
    };
    ($(#[$of_all:meta])* pub enum $name:ident {
        $($(#[$of_one:meta])* $word:ident,)+
        ..
        $($(#[$of_other:meta])* $other:ident($list:ty),)+
    }) => {
        $(#[$of_all])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$of_one])* $word,)+
            $($(#[$of_other])* $other($list),)+
        }

        impl $name {
            /// The words of no other list, in the order of their declaration.
            pub const OWN: [$name; [$(stringify!($word)),+].len()] = [$($name::$word),+];

            /// Every one: its own, then those of other lists.
            pub fn all() -> impl Iterator<Item = $name> {
                let own = Self::OWN.into_iter();
                $(let own = own.chain(<$list>::all().map($name::$other));)+
                own
            }

            /// The word itself.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($name::$word => stringify!($word),)+
                    $($name::$other(other) => other.as_str(),)+
                }
            }
        }

        $(impl From<$list> for $name {
            fn from(other: $list) -> Self {
                $name::$other(other)
            }
        })+

        impl ::std::fmt::Display for $name {
            fn fmt(&self, out: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                out.write_str(self.as_str())
            }
        }
    };
}

closed_list! {
    /// What `kubectl runnel plan` reports of a copy, in the order in which they are counted.
    pub enum Verdict {
        /// The copy is created.
        Create = "create",
        /// The copy is changed.
        Change = "change",
        /// An object that is not Runnel's is adopted or overwritten.
        TakeOver = "takeOver",
        /// An object that is not Runnel's is adopted if it is equal, which is not disclosed.
        AdoptIfEqual = "adoptIfEqual",
        /// The copy is deleted.
        Remove = "remove",
        /// The copy stays without marks.
        Retain = "retain",
        /// Another rule takes the copy over.
        HandOver = "handOver",
        /// The removal waits for an approval.
        Blocked = "blocked",
        /// An object that is not Runnel's exists, and is left alone.
        Conflict = "conflict",
        /// The member's policy or its API server denies the copy.
        Denied = "denied",
        /// The agent has no permission.
        Forbidden = "forbidden",
        /// The API server does not accept the copy.
        Invalid = "invalid",
        /// The copy cannot be as the rule requires.
        Refused = "refused",
        /// The namespace does not exist.
        Wait = "wait",
        /// Nothing is done about the copy.
        Noop = "noop",
        /// The copy stays as it is.
        Unchanged = "unchanged",
    }
}

closed_list! {
    /// The state of a copy in the answer of `kubectl runnel explain`: as the agent reports it, or why
    /// the hub does not send it.
    pub enum ExplainedState {
        /// The copy is as its source.
        Applied,
        /// The copy is being written.
        UnderWay,
        /// The copy cannot be written.
        Failed,
        /// The namespace does not exist.
        Waiting,
        /// Another client has changed the copy, and it is left so.
        Drifted,
        /// The copy is being removed.
        Removing,
        /// The removal of the copy waits for an approval.
        PruneRequested,
        /// The rule does not select the cluster.
        ClusterNotChosen,
        /// No grant lets the rule send to the cluster.
        ClusterNotGranted,
        /// The rule does not select the namespace.
        NamespaceNotChosen,
        /// No grant lets the rule send this kind.
        NotGranted,
        /// The rule is suspended.
        Suspended,
        /// The rule is a dry run.
        DryRun,
        /// The cluster is cordoned.
        Cordoned,
        /// The turn of the cluster in a rollout has not come.
        RollingOut,
        /// The copy cannot be rendered.
        RenderError,
        /// The source is never copied.
        Refused,
        /// The hub cannot read the source.
        Unread,
        /// The rule is being deleted.
        Deleted,
        /// Only the agent has the state.
        NotReported,
        /// The hub has not decided or sent it yet, or the agent has not confirmed it.
        NotConfirmed,
        /// The cluster has what the last completed rollout sent.
        Reverted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_parsed_by_their_own_list() {
        assert_eq!(Verdict::parse("takeOver"), Some(Verdict::TakeOver));
        assert_eq!(ExplainedState::parse("takeOver"), None);
    }
}
