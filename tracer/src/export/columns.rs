//! Writes one table as a Parquet file, in row groups of bounded size.
//!
//! Owns the columns of a row group in memory, with the levels of lists and nulls. Must not know what a row means.

use std::{
    fs::File,
    io::{self, BufWriter},
    sync::Arc,
};

use parquet::{
    basic::Compression,
    data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int32Type, Int64Type},
    errors::ParquetError,
    file::{
        metadata::KeyValue,
        properties::WriterProperties,
        writer::{SerializedColumnWriter, SerializedFileWriter},
    },
    schema::{parser::parse_message_type, types::ColumnDescPtr},
};

use crate::time::Timestamp;

/// The most rows of one row group, and the most bytes of values that it has in memory.
const MAX_ROWS: usize = 65_536;
const MAX_BYTES: usize = 16 << 20;
const NS_PER_US: u64 = 1000;

/// A table that is being written.
pub(super) struct Table {
    writer: SerializedFileWriter<BufWriter<File>>,
    columns: Vec<Column>,
    rows: usize,
    written: u64,
}

/// The values of one column in the row group.
struct Column {
    values: Values,
    definition: Vec<i16>,
    repetition: Vec<i16>,
    max_definition: i16,
    max_repetition: i16,
    bytes: usize,
}

enum Values {
    Bool(Vec<bool>),
    Int(Vec<i32>),
    Long(Vec<i64>),
    Double(Vec<f64>),
    Text(Vec<ByteArray>),
}

/// One value of a cell.
#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    Bool(bool),
    Int(i32),
    Long(i64),
    Double(f64),
    Text(&'a str),
    /// Microseconds, which every engine reads; nanoseconds are not.
    Time(Timestamp),
}

/// A row that is being filled, column by column in the order of the schema.
pub(super) struct Row<'a> {
    columns: std::slice::IterMut<'a, Column>,
}

impl Table {
    /// Begins the file with this message type and these facts.
    pub(super) fn create(file: File, schema: &str, facts: Vec<(&str, String)>) -> io::Result<Self> {
        let schema = Arc::new(parse_message_type(schema).map_err(failed)?);
        let facts = facts.into_iter().map(|(key, value)| KeyValue::new(key.to_owned(), value)).collect();
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(format!("viptrace {}", env!("CARGO_PKG_VERSION")))
            .set_key_value_metadata(Some(facts))
            .build();
        let writer =
            SerializedFileWriter::new(BufWriter::new(file), schema, Arc::new(properties)).map_err(failed)?;
        let columns = writer.schema_descr().columns().iter().map(Column::new).collect::<io::Result<_>>()?;
        Ok(Self { writer, columns, rows: 0, written: 0 })
    }

    /// Adds a row.
    pub(super) fn row(&mut self, fill: impl FnOnce(&mut Row<'_>) -> io::Result<()>) -> io::Result<()> {
        fill(&mut Row { columns: self.columns.iter_mut() })?;
        self.rows += 1;
        self.written += 1;
        let bytes: usize = self.columns.iter().map(|column| column.bytes).sum();
        if self.rows >= MAX_ROWS || bytes >= MAX_BYTES { self.write_group() } else { Ok(()) }
    }

    fn write_group(&mut self) -> io::Result<()> {
        let mut group = self.writer.next_row_group().map_err(failed)?;
        for column in &mut self.columns {
            let mut writer = group.next_column().map_err(failed)?.ok_or_else(wrong_column)?;
            column.write(&mut writer).map_err(failed)?;
            writer.close().map_err(failed)?;
            column.clear();
        }
        group.close().map_err(failed)?;
        self.rows = 0;
        Ok(())
    }

    /// Ends the file. Returns its number of rows.
    pub(super) fn finish(mut self) -> io::Result<u64> {
        if self.rows > 0 {
            self.write_group()?;
        }
        self.writer.close().map_err(failed)?;
        Ok(self.written)
    }
}

fn failed(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(source) => io::Error::other(source),
        error => io::Error::other(error),
    }
}

fn wrong_column() -> io::Error {
    io::Error::other("a row does not fit its table")
}

impl Column {
    fn new(about: &ColumnDescPtr) -> io::Result<Self> {
        use parquet::basic::Type;
        let values = match about.physical_type() {
            Type::BOOLEAN => Values::Bool(Vec::new()),
            Type::INT32 => Values::Int(Vec::new()),
            Type::INT64 => Values::Long(Vec::new()),
            Type::DOUBLE => Values::Double(Vec::new()),
            Type::BYTE_ARRAY => Values::Text(Vec::new()),
            _ => return Err(wrong_column()),
        };
        Ok(Self {
            values,
            definition: Vec::new(),
            repetition: Vec::new(),
            max_definition: about.max_def_level(),
            max_repetition: about.max_rep_level(),
            bytes: 0,
        })
    }

    fn push(&mut self, value: Value<'_>) -> io::Result<()> {
        self.bytes += 8;
        match (&mut self.values, value) {
            (Values::Bool(values), Value::Bool(value)) => values.push(value),
            (Values::Int(values), Value::Int(value)) => values.push(value),
            (Values::Long(values), Value::Long(value)) => values.push(value),
            (Values::Long(values), Value::Time(time)) => {
                values.push((time.as_unix_ns() / NS_PER_US).cast_signed());
            }
            (Values::Double(values), Value::Double(value)) => values.push(value),
            (Values::Text(values), Value::Text(text)) => {
                self.bytes += text.len() + size_of::<ByteArray>();
                values.push(text.into());
            }
            _ => return Err(wrong_column()),
        }
        Ok(())
    }

    fn level(&mut self, definition: i16, repetition: i16) {
        self.bytes += 4;
        self.definition.push(definition);
        self.repetition.push(repetition);
    }

    fn write(&self, writer: &mut SerializedColumnWriter<'_>) -> Result<(), ParquetError> {
        let definition = (self.max_definition > 0).then_some(&self.definition[..]);
        let repetition = (self.max_repetition > 0).then_some(&self.repetition[..]);
        match &self.values {
            Values::Bool(it) => writer.typed::<BoolType>().write_batch(it, definition, repetition),
            Values::Int(it) => writer.typed::<Int32Type>().write_batch(it, definition, repetition),
            Values::Long(it) => writer.typed::<Int64Type>().write_batch(it, definition, repetition),
            Values::Double(it) => writer.typed::<DoubleType>().write_batch(it, definition, repetition),
            Values::Text(it) => writer.typed::<ByteArrayType>().write_batch(it, definition, repetition),
        }
        .map(drop)
    }

    fn clear(&mut self) {
        match &mut self.values {
            Values::Bool(values) => values.clear(),
            Values::Int(values) => values.clear(),
            Values::Long(values) => values.clear(),
            Values::Double(values) => values.clear(),
            Values::Text(values) => values.clear(),
        }
        self.definition.clear();
        self.repetition.clear();
        self.bytes = 0;
    }
}

impl Row<'_> {
    fn next(&mut self) -> io::Result<&mut Column> {
        self.columns.next().ok_or_else(wrong_column)
    }

    /// Fills the next column, which is required.
    pub(super) fn put(&mut self, value: Value<'_>) -> io::Result<()> {
        let column = self.next()?;
        column.level(column.max_definition, 0);
        column.push(value)
    }

    /// Fills the next column, which is optional.
    pub(super) fn maybe(&mut self, value: Option<Value<'_>>) -> io::Result<()> {
        let column = self.next()?;
        column.level(i16::from(value.is_some()), 0);
        value.map_or(Ok(()), |value| column.push(value))
    }

    /// Fills the next column, which is one of a list's elements.
    pub(super) fn list<'v>(&mut self, values: impl Iterator<Item = Option<Value<'v>>>) -> io::Result<()> {
        let column = self.next()?;
        let mut is_empty = true;
        for value in values {
            let definition = if value.is_some() { column.max_definition } else { column.max_definition - 1 };
            column.level(definition, i16::from(!is_empty));
            is_empty = false;
            value.map_or(Ok(()), |value| column.push(value))?;
        }
        if is_empty {
            column.level(0, 0);
        }
        Ok(())
    }
}
