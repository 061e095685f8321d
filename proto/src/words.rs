//! Closed lists of the words in statuses and Events, chosen by type.

/// Declares an enum of CamelCase words, with `ALL` of them in order and `as_str`. Each word is
/// written once, so that neither can lack one.
#[macro_export]
macro_rules! closed_list {
    ($(#[$of_all:meta])* pub enum $name:ident { $($(#[$of_one:meta])* $word:ident,)+ }) => {
        $(#[$of_all])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$of_one])* $word,)+
        }

        impl $name {
            /// Every one, in the order in which they are declared.
            pub const ALL: [$name; [$(stringify!($word)),+].len()] = [$($name::$word),+];

            /// Every one, in the same order.
            pub fn all() -> impl Iterator<Item = $name> {
                Self::ALL.into_iter()
            }

            /// The word itself.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($name::$word => stringify!($word),)+
                }
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
