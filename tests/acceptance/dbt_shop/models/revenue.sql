{{ config(materialized="table") }}
{% if execute and var("compile_error", false) %}{{ exceptions.raise_compiler_error("no such currency: EUX") }}{% endif %}
select sum(amount) as total from {{ ref("orders") }}
