//! Serde helpers for the JSON form of generated messages; the attributes that `build.rs` adds name them.

use std::{collections::BTreeMap, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serializer,
    de::{self, MapAccess, SeqAccess, Unexpected, Visitor, value::MapAccessDeserializer},
};

use super::LIST_MAX;
use crate::pb;

/// Returns whether a field has its default value, and so is omitted.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Reads a string or a bool.
pub(crate) fn value<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// Reads a field whose absence differs from its default.
pub(crate) fn presence<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    Option::deserialize(from)
}

/// Reads an unsigned integer, given as a number or a string of digits.
pub(crate) fn integer<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: TryFrom<u64> + Default,
    D: Deserializer<'de>,
{
    Ok(Option::<Integer<T>>::deserialize(from)?.map(|integer| integer.0).unwrap_or_default())
}

/// Reads an unsigned integer whose absence differs from 0.
pub(crate) fn optional_integer<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
where
    T: TryFrom<u64>,
    D: Deserializer<'de>,
{
    Ok(Option::<Integer<T>>::deserialize(from)?.map(|integer| integer.0))
}

/// Reads a list of unsigned integers.
pub(crate) fn integers<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u64>, D::Error> {
    let list = Option::<List<Integer<u64>>>::deserialize(from)?;
    Ok(list.map(|list| list.0.into_iter().map(|integer| integer.0).collect()).unwrap_or_default())
}

/// Reads a message.
pub(crate) fn message<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::<Object<T>>::deserialize(from)?.map(|object| object.0))
}

/// Reads a list of messages.
pub(crate) fn messages<'de, T, D>(from: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let list = Option::<List<Object<T>>>::deserialize(from)?;
    Ok(list.map(|list| list.0.into_iter().map(|object| object.0).collect()).unwrap_or_default())
}

/// Reads a map of strings to strings.
pub(crate) fn map<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    Ok(Option::<Entries>::deserialize(from)?.map(|entries| entries.0).unwrap_or_default())
}

/// Reads an enum, given as a known name or any number.
pub(crate) fn name<'de, E: Named, D: Deserializer<'de>>(from: D) -> Result<i32, D::Error> {
    Ok(Option::<Name<E>>::deserialize(from)?.map(|name| name.0).unwrap_or_default())
}

/// Writes an enum as its name, or as a number if the name is unknown.
pub(crate) fn write_name<E: Named, S: Serializer>(number: &i32, to: S) -> Result<S::Ok, S::Error> {
    match E::name_of(*number) {
        Some(name) => to.serialize_str(name),
        None => to.serialize_i32(*number),
    }
}

/// Generated enum with names; prost generates the same functions for each, but no trait.
pub(crate) trait Named {
    /// Returns the canonical name of a number.
    fn name_of(number: i32) -> Option<&'static str>;
    /// Returns the number of a canonical name.
    fn number_of(name: &str) -> Option<i32>;
}

macro_rules! named {
    ($($name:ident)*) => {$(
        impl Named for pb::$name {
            fn name_of(number: i32) -> Option<&'static str> {
                Self::try_from(number).ok().map(|known| known.as_str_name())
            }

            fn number_of(name: &str) -> Option<i32> {
                Self::from_str_name(name).map(|known| known as i32)
            }
        }
    )*};
}

named!(Direction MemberChange NoticeKind Reconnect);

/// 2^53: every integer below it has an exact double.
const EXACT_DOUBLES_END: f64 = 9_007_199_254_740_992.0;

struct Integer<T>(T);

impl<'de, T: TryFrom<u64>> Deserialize<'de> for Integer<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(IntegerVisitor(PhantomData))
    }
}

struct IntegerVisitor<T>(PhantomData<T>);

impl<T: TryFrom<u64>> Visitor<'_> for IntegerVisitor<T> {
    type Value = Integer<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an unsigned integer in range")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
        T::try_from(number).map(Integer).map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Self::Value, E> {
        if number.fract() == 0.0 && (0.0..EXACT_DOUBLES_END).contains(&number) {
            self.visit_u64(number as u64)
        } else {
            Err(E::invalid_value(Unexpected::Float(number), &self))
        }
    }

    fn visit_str<E: de::Error>(self, digits: &str) -> Result<Self::Value, E> {
        let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
        match digits.parse() {
            Ok(number) if plain => self.visit_u64(number),
            _ => Err(E::invalid_value(Unexpected::Str(digits), &self)),
        }
    }
}

/// Message read from an object only. The derived form also accepts an array, which is not protobuf JSON.
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

/// List of at most [`LIST_MAX`] entries.
struct List<T>(Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(ListVisitor(PhantomData))
    }
}

struct ListVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
    type Value = List<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while let Some(entry) = seq.next_element()? {
            if list.len() >= LIST_MAX {
                return Err(de::Error::custom("list is too long"));
            }
            list.push(entry);
        }
        Ok(List(list))
    }
}

struct Entries(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = BTreeMap::new();
        while let Some((key, value)) = map.next_entry()? {
            if entries.insert(key, value).is_some() {
                return Err(de::Error::custom("duplicate key"));
            }
        }
        Ok(Entries(entries))
    }
}

struct Name<E>(i32, PhantomData<E>);

impl<'de, E: Named> Deserialize<'de> for Name<E> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(NameVisitor(PhantomData))
    }
}

struct NameVisitor<E>(PhantomData<E>);

impl<N: Named> Visitor<'_> for NameVisitor<N> {
    type Value = Name<N>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name or number of an enum value")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Self::Value, E> {
        match N::number_of(name) {
            Some(number) => Ok(Name(number, PhantomData)),
            None => Err(E::invalid_value(Unexpected::Str(name), &self)),
        }
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
        i32::try_from(number)
            .map(|number| Name(number, PhantomData))
            .map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
        i32::try_from(number)
            .map(|number| Name(number, PhantomData))
            .map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
    }
}
