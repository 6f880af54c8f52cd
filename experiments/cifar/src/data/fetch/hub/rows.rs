//! Converts the rows of the hub's Parquet files to records of the official binary files.
//!
//! A row has a structure `img` with `bytes` (a PNG of 32 x 32 RGB pixels) and `path` (not used),
//! and a 64-bit `label` from 0 to 9.

use std::fs::File;
use std::io::Cursor;
use std::path::Path;
use std::thread;

use parquet::basic::Type;
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::{ByteArrayType, DataType, Int64Type};
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::schema::types::SchemaDescriptor;

use crate::data::cifar10::{CLASSES, PIXELS, RECORD};
use crate::data::error::{Error, Result};
use crate::data::fetch::planes_of;
use crate::limits;

/// Why a file cannot be used; the caller adds which file.
type Reason = String;

/// Memory limit for decoding one picture.
const PICTURE_MEMORY: usize = 1 << 20;

/// The name of the thread that decodes. A panic of this thread becomes an error, so the program
/// need not report it.
pub const THREAD: &str = "parquet";

/// Reads a file of `expected` rows as records of a label byte and the red, green and blue planes.
pub fn records(path: &Path, expected: usize) -> Result<Vec<u8>> {
    let unreadable = |error: std::io::Error| format!("it cannot be read: {error}");
    let decoded = || -> std::result::Result<Vec<u8>, Reason> {
        let file = limits::open(path).map_err(unreadable)?;
        let size = file.metadata().map_err(unreadable)?.len();
        if size > limits::DOWNLOAD {
            return Err(format!("it has {size} bytes, and may have {}", limits::DOWNLOAD));
        }
        // A damaged file can violate assertions in the Parquet library, and then it panics.
        let decoder = thread::Builder::new().name(THREAD.into());
        let decoder = decoder.spawn(move || read(file, expected)).map_err(unreadable)?;
        decoder.join().map_err(|_| "it cannot be read: it contradicts itself".to_owned())?
    };
    decoded().map_err(|reason| {
        let name = path.file_name().unwrap_or_default().display();
        Error::Foreign(format!("{name}: {reason}"))
    })
}

fn read(file: File, expected: usize) -> std::result::Result<Vec<u8>, Reason> {
    let unreadable = |error| format!("it cannot be read: {error}");
    let reader = SerializedFileReader::new(file).map_err(unreadable)?;
    let schema = reader.metadata().file_metadata().schema_descr();
    let images = column(schema, "img.bytes", Type::BYTE_ARRAY)?;
    let labels = column(schema, "label", Type::INT64)?;
    let mut rows = 0;
    for group in reader.metadata().row_groups() {
        // Memory is allocated for as many rows as a group claims.
        let count = usize::try_from(group.num_rows()).ok().filter(|count| *count <= expected);
        rows += count.ok_or_else(|| format!("a group of it claims {} rows", group.num_rows()))?;
    }
    if rows != expected {
        return Err(format!("it has {rows} rows, not {expected}"));
    }

    let bar = lab::ProgressBar::new("decoding", expected as u64);
    let mut records = Vec::with_capacity(expected * RECORD);
    for number in 0..reader.num_row_groups() {
        let group = reader.get_row_group(number).map_err(unreadable)?;
        let images = values::<ByteArrayType>(&*group, images)?;
        let labels = values::<Int64Type>(&*group, labels)?;
        for (image, label) in images.iter().zip(labels) {
            let row = records.len() / RECORD;
            if !(0..CLASSES.len() as i64).contains(&label) {
                return Err(format!("the label of row {row} is {label}, not 0 to 9"));
            }
            records.push(label as u8);
            let planes = decode(image.data());
            records.extend(planes.map_err(|reason| format!("the picture of row {row}: {reason}"))?);
            bar.advance(1);
        }
    }
    Ok(records)
}

/// The index of the column with this name, which must have this type and not be a list.
fn column(schema: &SchemaDescriptor, name: &str, kind: Type) -> std::result::Result<usize, Reason> {
    let mut columns = schema.columns().iter();
    let place = columns.position(|column| {
        let is_plain = column.max_rep_level() == 0;
        column.path().string() == name && column.physical_type() == kind && is_plain
    });
    place.ok_or_else(|| format!("it has no column {name} of type {kind}"))
}

/// All values of a column in a row group, none of which may be missing.
fn values<T: DataType>(
    group: &dyn RowGroupReader,
    column: usize,
) -> std::result::Result<Vec<T::T>, Reason> {
    let unreadable = |error| format!("it cannot be read: {error}");
    let rows = usize::try_from(group.metadata().num_rows()).map_err(|error| error.to_string())?;
    let reader = group.get_column_reader(column).map_err(unreadable)?;
    let (mut values, mut presence) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
    get_typed_column_reader::<T>(reader)
        .read_records(rows, Some(&mut presence), None, &mut values)
        .map_err(unreadable)?;
    if values.len() != rows {
        let missing = rows.saturating_sub(values.len());
        let name = group.metadata().column(column).column_path().string();
        return Err(format!("{missing} values of {name} are missing"));
    }
    Ok(values)
}

/// Decodes a PNG to its red, green and blue planes.
fn decode(png: &[u8]) -> std::result::Result<Vec<u8>, Reason> {
    let limits = png::Limits { bytes: PICTURE_MEMORY };
    let damaged = |error: png::DecodingError| format!("it is not a valid PNG: {error}");
    let decoder = png::Decoder::new_with_limits(Cursor::new(png), limits);
    let mut reader = decoder.read_info().map_err(damaged)?;
    let info = reader.info();
    let is_rgb = (info.color_type, info.bit_depth) == (png::ColorType::Rgb, png::BitDepth::Eight);
    if (info.width, info.height) != (32, 32) || !is_rgb {
        return Err(format!(
            "it has {} x {} pixels of {:?}, not 32 x 32 of Rgb",
            info.width, info.height, info.color_type
        ));
    }
    let mut pixels = [0; PIXELS];
    reader.next_frame(&mut pixels).map_err(damaged)?;
    Ok(planes_of(&pixels))
}
