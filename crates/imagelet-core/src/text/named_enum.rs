//! Declares enums whose values have a stable name.

/// Declares an enum with the stable name of each value, as programs read it and as it is displayed.
#[macro_export]
macro_rules! named_enum {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $type:ident { $($(#[$of_value:meta])* $value:ident = $name:literal,)* }
    ) => {
        $(#[$attribute])*
        $visibility enum $type { $($(#[$of_value])* $value,)* }

        impl $type {
            /// All values, in the order of their declaration.
            $visibility const ALL: [Self; [$(Self::$value),*].len()] = [$(Self::$value),*];

            /// The stable name.
            $visibility fn name(self) -> &'static str {
                match self { $(Self::$value => $name,)* }
            }
        }

        impl ::std::fmt::Display for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
pub use named_enum;
