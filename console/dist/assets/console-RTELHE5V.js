import{$ as o,W as a,_a as d,b as e,ba as t,da as n,ea as p,q as r,v as i}from"./chunk-BDVMA7AO.js";t();r();o();n();var l=document.getElementById("app");l&&e(p(d,{}),l);i().then(a);
